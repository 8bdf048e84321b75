"""Room of Dask: its rules over several sections of the configuration, and the arguments of Beam."""
