"""EmbeddingTrainer: trains tables and dense part, and writes the model as it will be served.

To train with your own `run_fn`, use `components.trainer.own_run.TrainerRun` in it.
"""

from components.trainer.component import EmbeddingTrainer

__all__ = ["EmbeddingTrainer"]
