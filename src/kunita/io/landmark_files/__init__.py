"""Landmark files: one module per outside convention; `files` has the doors."""
