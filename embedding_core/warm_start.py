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
    """The checkpoint that the model starts from, and the rules for everything that differs from the checkpoint.

    Attributes:
      checkpoint: checkpoint of the newest version that was pushed and not rolled back ("pushed"), of the newest version
        in the serving folder ("served"), or of the newest training that finished, pushed or not ("trained"); or the URI
        of an EmbeddingCheckpoint. With one of these words, the first run starts without a checkpoint. "latest" is the
        old name of "trained".
      repeated_data: what to do with data that the checkpoint was trained on: "error" refuses it, "train" trains on it
        once more, as overlapping windows of several days need. With either, an unchanged run that is repeated takes its
        results from the cache.
      new_rows: what the row of a new token starts from: the table's "initializer", or "oov", a copy of the
        out-of-vocabulary row that the token had in the checkpoint.
      new_tables: what to do with a table that only the configuration or only the checkpoint has (it may have been
        renamed): "error" refuses it; "initialize" starts a new table from its initializer, and leaves out a table that
        is not configured any more.
      changed_dim: what to do with a table whose `dim` changed: "error" refuses it, "reset" starts the table from its
        initializer, "resize" keeps the columns that both dims have and takes further ones from the initializer.
      changed_optimizer: what to do with a table whose optimizer changed: "error" refuses it, "reset" starts all its
        slots from their initial values, "convert" keeps the accumulators of Adagrad, AdagradMomentum and FTRL. With
        "reset" and "convert", FTRL's linear terms are computed from the rows, because FTRL would lose the rows
        otherwise.
      dense: weights of the dense part: "restore" takes those of the checkpoint if inputs, labels, names and shapes
        agree; otherwise it starts from new weights and says why. "require" makes a difference an error. "reset" always
        starts from new weights.
      dense_optimizer: slots and iterations of the dense optimizer: "restore" takes them over with the weights, "reset"
        starts from new ones.
      ranges: ranges that dense features are scaled by: "keep" takes those of the previous model, which its weights
        need. A feature whose column or log1p changed gets a new range, and the dense part then starts from new weights.
        "recompute" scales by this run's data.
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
