"""Plans a model: the choices that a configuration has, their memory on TPU slices, and their loss in short runs."""
