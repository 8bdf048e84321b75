"""CheckpointRetriever: the tables of a training run, by name."""

from components.checkpoint_retriever.component import CheckpointRetriever

__all__ = ["CheckpointRetriever"]
