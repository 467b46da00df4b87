"""What a user brings: landmarks of one or several raters, images, surfaces, cases."""
