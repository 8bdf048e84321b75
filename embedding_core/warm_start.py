"""Declares the section `warm_start` of the YAML file, and its parts for the tables and for the dense part."""

from __future__ import annotations

from typing import Literal, TypeAlias

from embedding_core.schema import Json, Section, Text, Whole

NewRows: TypeAlias = Literal["initializer", "oov"]
ChangedOptimizer: TypeAlias = Literal["error", "reset", "convert"]


class _RowChoices(Section):
    new_rows: NewRows = "initializer"
    new_tables: Literal["error", "initialize"] = "error"
    changed_dim: Literal["error", "reset", "resize"] = "error"
    changed_optimizer: ChangedOptimizer = "error"


class _DenseChoices(Section):
    dense: Literal["restore", "require", "reset"] = "restore"
    dense_optimizer: Literal["restore", "reset"] = "restore"
    ranges: Literal["keep", "recompute"] = "keep"


class RemapPolicy(_RowChoices):
    """Choices for rows, tables and slots that the checkpoint does not have, as `WarmStart` describes them.

    Attributes:
      seed: seed of the initializers.
    """

    seed: Whole = 0


class DenseStart(_DenseChoices):
    """What the dense part starts from, with the choices that `WarmStart` describes.

    Attributes:
      folder: folder of the dense part.
    """

    folder: str


class WarmStart(_DenseChoices, _RowChoices):
    """What the model starts from, and what to do about parts that the checkpoint does not have.

    Attributes:
      checkpoint: "pushed" (of the newest version that was pushed and not rolled back), "served" (of the newest version
        in the serving folder), "trained" (of the newest training that finished, pushed or not), or the URI of an
        EmbeddingCheckpoint. If one of these words is given, the first run starts without a checkpoint. "latest" is the
        old name of "trained".
      repeated_data: what to do with data that the checkpoint was trained on: "error" refuses it, "train" trains on it
        once more, as overlapping windows of several days need. With either value, repeating an unchanged run takes its
        results from the cache.
      new_rows: what the row of a new token starts from: the table's "initializer", or "oov", a copy of the
        out-of-vocabulary row that the token had in the checkpoint.
      new_tables: what to do with a table that the checkpoint does not have (it may only have been renamed), or that is
        not configured any more: "error" refuses both, "initialize" starts a new table from its initializer and leaves
        out one that is not configured.
      changed_dim: what to do with a table of another `dim`: "error" refuses it, "reset" starts the table again,
        "resize" keeps the columns that both have and takes further ones from the initializer.
      changed_optimizer: what to do with a table of another optimizer: "error" refuses it, "reset" starts all its slots
        again, "convert" keeps the accumulators of Adagrad, AdagradMomentum and FTRL. Both "reset" and "convert" compute
        FTRL's linear terms from the rows, because FTRL would lose the rows without them.
      dense: weights of the dense part: "restore" takes them over if inputs, names and shapes agree, and else starts
        from new weights and says why; "require" makes a difference an error; "reset" always starts from new weights.
      dense_optimizer: slots and iterations of the dense optimizer: "restore" takes them over with the weights, "reset"
        starts from new ones.
      ranges: ranges that dense features are scaled by: "keep" takes those that the previous model was trained with,
        which its weights need; a feature whose column or log1p changed gets a new range, and then the dense part starts
        from new weights. "recompute" scales by this run's data.
    """

    SHORT = "checkpoint"

    checkpoint: Text
    repeated_data: Literal["error", "train"] = "error"

    def row_choices(self) -> Json:
        """Give the choices for rows, as fields of `RemapPolicy`."""
        return {key: value for key, value in self.to_mapping().items() if key in _RowChoices.model_fields}

    def dense_choices(self) -> Json:
        """Give the choices for the dense part, as fields of `DenseStart`."""
        return {key: value for key, value in self.to_mapping().items() if key in _DenseChoices.model_fields}
