"""What a user brings: landmarks, images, and generated cases with a known truth."""
