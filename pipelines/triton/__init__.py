"""Room of Triton: the command `triton`."""
