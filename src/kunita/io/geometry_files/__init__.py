"""Meshes and streamlines from files and back: one file per format; `files` has the doors."""
