"""From observations to a fit: the objective, the alignment, the solver and the evidence."""
