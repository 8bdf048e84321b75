"""Room of parameter servers: the pods and pools of a cluster."""
