"""Room of deltas: the command `serve-delta`, and what runs and reports say of deltas."""
