"""Room of SparseCores: their limits in the report of a run and in a preflight."""
