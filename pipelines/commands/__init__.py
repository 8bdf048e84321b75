"""Implements the command line, `tfx-embeddings`."""
