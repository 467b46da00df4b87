"""The experiments of the paper, each a function that returns its tables and its figures."""
