"""CheckpointLoader: an earlier run's tables, brought to a new run's vocabularies."""

from components.checkpoint_loader.component import CheckpointLoader

__all__ = ["CheckpointLoader"]
