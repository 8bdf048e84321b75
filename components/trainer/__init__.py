"""EmbeddingTrainer: trains tables and dense part, and writes the model as it will be served.

A `run_fn` of your own trains with `components.trainer.own_run.TrainerRun`.
"""

from components.trainer.component import EmbeddingTrainer

__all__ = ["EmbeddingTrainer"]
