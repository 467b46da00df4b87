"""Files in and out; axes are flipped here and nowhere else."""
