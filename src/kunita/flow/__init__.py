"""The flow of the model: its mean (shooting, transport), its covariance, and its random paths."""
