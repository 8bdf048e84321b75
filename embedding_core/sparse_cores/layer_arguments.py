"""Declares the argument of the Keras layer that SparseCores take."""

from __future__ import annotations

from embedding_core.sparse_cores import SparseCoreEmbeddingConfig

ARGUMENTS = {"sparse_core_embedding_config": SparseCoreEmbeddingConfig}
"""Limits of SparseCores, a SparseCoreEmbeddingConfig of this project or of a TensorFlow that has it."""
