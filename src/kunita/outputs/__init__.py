"""What a registration gives: maps, warps, labels, transforms and points, on whole grids at once."""
