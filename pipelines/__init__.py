"""Pipelines built of the components: one YAML file in, a served embedding model out."""
