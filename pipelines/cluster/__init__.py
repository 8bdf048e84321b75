"""Compiles a pipeline for Vertex AI or Kubeflow Pipelines, and runs the compiled form on this machine."""
