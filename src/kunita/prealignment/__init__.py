"""How two images lie to each other, from their intensities: an alignment to start a fit from.

SimpleITK maximises the mutual information of the intensities [Mattes et al. 2003] over
translations, rotations, similarities or affine maps. The search starts from many
rotations on coarse copies of the images, and refines the best on finer ones. It runs
on one thread with a fixed seed: the same images give the same matrix, bit for bit.

Points are in Kunita's world (RAS+ mm in 3-D; x right, y down in 2-D): the search does
not ask what the axes mean. As in any program that warps images, it is for the map of
points from fixed to moving space; its inverse is what is returned.

`align.prealign` is the door. `search` compares starts and refines the best, on images that
`shrinking` makes ready, by ITK's optimiser, which is spoken to in `itk` alone. `overlap` measures
how much of one image lies inside the other.
"""
