"""What was observed: landmarks, and whatever else can be written as whitened rows."""
