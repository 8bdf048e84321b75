"""Trains models with embedding tables: input pipeline, loop, checkpoints. Does not depend on TFX."""

from embedding_core.training.finished_run import fingerprint
from embedding_core.training.job import TrainingJob
from embedding_core.training.training_inputs import Inputs
from embedding_core.training.training_run import TrainingResult, train
from embedding_core.training_config import EarlyStopping, Negatives, TrainingConfig

__all__ = [
    "EarlyStopping",
    "Inputs",
    "Negatives",
    "TrainingConfig",
    "TrainingJob",
    "TrainingResult",
    "fingerprint",
    "train",
]
