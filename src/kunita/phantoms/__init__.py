"""Generated cases with a known truth: shapes, a head with a brain that shifts, cohorts of them."""
