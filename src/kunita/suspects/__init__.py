"""Landmarks that cannot be right: gross errors, exchanged labels, lists in another order, mirrors.

A gross error spoils the very hyper-parameters that should expose it: with it among
the data the noise grows, or a short length scale with a large amplitude explains it
away, and leave-one-out finds nothing. So the hyper-parameters are not estimated
here but averaged over, and each landmark is judged under those that *the others*
make likely. This needs a closed form, which the small-deformation model has
(`model`, on a `grid`). Only the displacements depend on the pairing: the matrices of the model
are factored once, and every pairing and every choice of landmarks to leave out
costs products with the factors. Nothing depends on the fit of a flow, which
landmarks that contradict each other can make slow or keep from converging. To find
gross errors, first order is enough.

`search.suspicion` is the door. `outliers` finds single landmarks that are far off,
`pairing` another order of the landmarks that explains them much better, and
`report` says it in sentences.
"""
