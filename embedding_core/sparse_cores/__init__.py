"""Room of SparseCores (TPU v5p and v6e): the limits that their programs are compiled with."""
