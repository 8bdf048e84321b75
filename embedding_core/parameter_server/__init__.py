"""Room of parameter servers: the value `parameter_server` of `training.strategy`, with its engine, steps and worker."""
