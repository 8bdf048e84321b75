"""CheckpointLoader: remaps the tables of a previous run to a new run's vocabularies."""

from components.checkpoint_loader.component import CheckpointLoader

__all__ = ["CheckpointLoader"]
