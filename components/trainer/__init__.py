"""EmbeddingTrainer: trains tables and dense part, and writes the model as it will be served."""

from components.trainer.component import EmbeddingTrainer

__all__ = ["EmbeddingTrainer"]
