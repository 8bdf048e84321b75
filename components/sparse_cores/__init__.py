"""Room of SparseCores: their limits in the artifact TableConfigs."""
