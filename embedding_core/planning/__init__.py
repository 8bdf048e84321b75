"""Plans the tables of a model: rows, dimensions, and memory on the hosts and cores of a TPU slice."""
