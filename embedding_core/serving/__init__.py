"""Exports SavedModels that look up on CPU, hold their vocabularies, and load with TensorFlow alone."""

from embedding_core.serving.export import export_embeddings, export_model
from embedding_core.serving.requests import named_inputs, public_facts, public_rows, synthetic_rows
from embedding_core.serving.serving_module import ExportForm, columns_of

__all__ = [
    "ExportForm",
    "columns_of",
    "export_embeddings",
    "export_model",
    "named_inputs",
    "public_facts",
    "public_rows",
    "synthetic_rows",
]
