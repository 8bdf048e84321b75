"""Room of parameter servers: the section `kubeflow.cluster`."""
