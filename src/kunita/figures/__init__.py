"""Values in, matplotlib Figure out; never shows, never reads a file."""
