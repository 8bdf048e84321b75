"""Compiles the pipeline for Vertex AI or Kubeflow Pipelines, and runs what was compiled on this machine."""
