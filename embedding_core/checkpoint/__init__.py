"""Writes and reads embedding checkpoints: tables and slots by name, verified, whatever the topology of the training.

On disk: a TensorFlow tensor bundle `tables` (plain `tf.train.load_checkpoint(folder + "/tables")` reads
`<table>` and `<table>/<slot>`), the folder `vocabularies`, optionally the folder `dense`, and `manifest.json`.
"""

from embedding_core.checkpoint.bundle import BundleReader, BundleWriter
from embedding_core.checkpoint.checkpoint_manifest import Manifest, read_manifest, table_shapes, verify
from embedding_core.checkpoint.remap import remap
from embedding_core.checkpoint.retrieve import load_checkpoint_into, retrieve, write_tables
from embedding_core.checkpoint.series import (
    CheckpointSeries,
    Tables,
    TrainingCheckpoint,
    TrainingState,
    latest_training_checkpoint,
    read_training_checkpoint,
    write_training_checkpoint,
)
from embedding_core.checkpoint.stored_keys import training_key

__all__ = [
    "BundleReader",
    "BundleWriter",
    "CheckpointSeries",
    "Manifest",
    "Tables",
    "TrainingCheckpoint",
    "TrainingState",
    "latest_training_checkpoint",
    "load_checkpoint_into",
    "read_manifest",
    "read_training_checkpoint",
    "remap",
    "retrieve",
    "table_shapes",
    "training_key",
    "verify",
    "write_tables",
    "write_training_checkpoint",
]
