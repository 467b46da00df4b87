"""Many cases together."""
