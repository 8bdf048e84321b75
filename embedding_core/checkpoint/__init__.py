"""Embedding checkpoints: logical tables and slots by name, verified, without topology.

On disk: a TensorFlow tensor bundle `tables` (plain `tf.train.load_checkpoint(folder + "/tables")` reads
`<table>` and `<table>/<slot>`) and `manifest.json`.
"""

from embedding_core.checkpoint.bundle import BundleReader, BundleWriter
from embedding_core.checkpoint.load import load_checkpoint_into
from embedding_core.checkpoint.manifest import Manifest, read_manifest, table_shapes, verify
from embedding_core.checkpoint.remap import RemapPolicy, remap
from embedding_core.checkpoint.retrieve import latest_training_checkpoint, retrieve, training_key, write_tables

__all__ = [
    "BundleReader",
    "BundleWriter",
    "Manifest",
    "RemapPolicy",
    "latest_training_checkpoint",
    "load_checkpoint_into",
    "read_manifest",
    "remap",
    "retrieve",
    "table_shapes",
    "training_key",
    "verify",
    "write_tables",
]
