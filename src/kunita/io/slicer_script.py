"""A script that loads all files of a result into 3D Slicer."""

from collections.abc import Sequence

HEAD = '''"""Load this registration into 3D Slicer.

In Slicer's Python console:  exec(open(r"/path/to/load_in_slicer.py").read())
From a shell:                Slicer --python-script load_in_slicer.py
(When started from the console, set FOLDER below if this file was moved.)
"""

import os

import slicer

FOLDER = os.path.dirname(os.path.abspath(__file__)) if "__file__" in globals() else {folder!r}


def path(name):
    return os.path.join(FOLDER, name)


def volume(name, title, colours=None, label=False):
    """Load an image; a map gets a colour table and its own window."""
    node = slicer.util.loadVolume(path(name), properties={{"name": title, "labelmap": label}})
    if colours:
        display = node.GetDisplayNode()
        display.SetAndObserveColorNodeID(slicer.util.getNode(colours).GetID())
        display.AutoWindowLevelOn()
    return node


def given(image):
    """Load an image that was registered, if it is still there and Slicer can; DICOM folders need its DICOM module."""
    if os.path.isfile(image):
        try:
            slicer.util.loadVolume(image)
        except RuntimeError as error:
            print(f"{{image}} was not loaded: {{error}}")


'''

MODELS = (".vtk", ".vtp", ".ply", ".stl")
"""Meshes that Slicer reads."""

LOADERS = {
    "warped.nii.gz": 'volume({name!r}, "moving image, warped")',
    "uncertainty_std.nii.gz": 'volume({name!r}, "standard deviation (mm)", "Viridis")',
    "uncertainty_radius.nii.gz": 'volume({name!r}, "95 % radius (mm)", "Viridis")',
    "uncertainty_fc.nii.gz": 'volume({name!r}, "Frobenius norm of the covariance (mm2)", "Viridis")',
    "jacobian.nii.gz": 'volume({name!r}, "Jacobian determinant", "ColdToHotRainbow")',
    "mismatch.nii.gz": 'volume({name!r}, "mismatch of the images (above 2: no match)", "Inferno")',
    "labels_probability.nii.gz": 'volume({name!r}, "label probability", "Inferno")',
    "forward_xfm.h5": 'slicer.util.loadTransform(path({name!r})).SetName("moving image to fixed")',
    "inverse_xfm.h5": 'slicer.util.loadTransform(path({name!r})).SetName("fixed image to moving")',
    "predicted.mrk.json": 'slicer.util.loadMarkups(path({name!r})).SetName("landmarks, predicted")',
    "targets.mrk.json": 'slicer.util.loadMarkups(path({name!r})).SetName("targets, predicted")',
    **{
        f"targets{suffix}": 'slicer.util.loadModel(path({name!r})).SetName("targets, predicted")'
        for suffix in MODELS
    },
}
"""How each file is loaded, in this order."""

REASONS = (
    ("uncertainty_cov.nii.gz", "the covariance, six components in a voxel, is for other programs"),
    ("_xfm.nrrd", "the same map as the transform in .h5"),
    ("_xfm.nii.gz", "the same map as the transform in .h5"),
    (".trk", "plain Slicer cannot read these streamlines"),
    (".tck", "plain Slicer cannot read these streamlines"),
    (".tsf", "plain Slicer cannot read values along streamlines"),
    (".gii", "plain Slicer cannot read GIfTI"),
    (".csv", "a table, not for the views"),
    (".png", "a picture of the result"),
    ("registration.h5", "the record, for kunita"),
    ("", "about the result"),
)
"""By the end of its usual name, why a file is not loaded: the first that fits."""


def slicer_script(folder: str, files: Sequence[tuple[str, str]], images: Sequence[str]) -> str:
    """The script for the files of a result: each is loaded, or a comment says why not.

    Args:
        folder: where the result will be.
        files: pairs of usual name and name in the folder.
        images: the user's own.
    """
    there = dict(files)
    lines = [f"given({image!r})" for image in images]
    lines += [call.format(name=there[usual]) for usual, call in LOADERS.items() if usual in there]
    lines.append("slicer.util.resetSliceViews()")
    lines += [_remark(usual, name) for usual, name in files if usual not in LOADERS]
    return HEAD.format(folder=folder) + "\n".join(lines) + "\n"


def _remark(usual: str, name: str) -> str:
    """A comment that names a file and says why it is not loaded."""
    reason = next(reason for ending, reason in REASONS if usual.endswith(ending))
    return f"# not loaded: {name!r} ({reason})"
