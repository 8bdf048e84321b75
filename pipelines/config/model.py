"""Declares the sections that say what is trained and pushed, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from embedding_core.config import (
    ChangedDim,
    ChangedOptimizer,
    DenseChoice,
    DenseOptimizerChoice,
    NewRows,
    NewTables,
    NonfiniteRows,
    RangesChoice,
)
from embedding_core.errors import ConfigError
from embedding_core.planning.topology import shape_of
from embedding_core.schema import (
    Key,
    Listed,
    Mistakes,
    Name,
    NonNegative,
    Positive,
    PositiveNumber,
    Rule,
    Section,
    Short,
    Text,
)
from pipelines.config.features import _optimizer

Strategy: TypeAlias = Literal["auto", "cpu", "gpu", "tpu", "simulated_tpu"]
DEFAULT_EPOCHS = 8
BUILT_IN_MODELS = {"ranking": "pipelines.models.ranking", "two_tower": "pipelines.models.two_tower"}


class Model(Section):
    """The model.

    Attributes:
      name: "ranking", "two_tower", or the dotted path of your own module with a function `build`.
      arguments: handed to `build` by keyword.
    """

    SHORT = "name"

    name: Text = "ranking"
    arguments: Mapping[Key, Any] = Field(default_factory=dict)

    @property
    def module(self) -> str:
        """The dotted path of the module with `build`."""
        return BUILT_IN_MODELS.get(self.name, self.name)


class DenseOptimizer(Section):
    """The Keras optimizer of everything but the tables.

    Attributes:
      name: of the Keras optimizer.
      learning_rate: its rate.
    """

    SHORT = "name"

    name: Literal["adam", "adamw", "adagrad", "ftrl", "nadam", "rmsprop", "sgd"] = "adam"
    learning_rate: PositiveNumber = 0.001


class EarlyStopping(Section):
    """Training ends when a validation part of the train split stops getting better, and goes back to the best step.

    Attributes:
      metric: "auc" (higher is better) or "loss" (lower is better).
      patience: how many evaluations in a row may bring nothing better.
      min_delta: how much better is better.
      validation_fraction: share of the train split that is not trained on, but evaluated to stop by, chosen by a hash
        of each row; the eval split chooses nothing, and its figures are those of rows that no choice has seen.
    """

    SHORT = "metric"

    metric: Literal["auc", "loss"] = "auc"
    patience: Positive = 3
    min_delta: NonNegative = 0.0
    validation_fraction: Annotated[float, Field(gt=0, le=0.5), Rule("above 0 and at most 0.5")] = 0.1


class Negatives(Section):
    """Negative examples made while training, for data that holds positives only.

    Attributes:
      feature: the feature that is replaced by a drawn token.
      per_positive: how many are made of each row.
      distribution: "uniform" over the vocabulary, or as often as the tokens occur ("count").
      candidate_features: all features that describe the candidate; with more than one, the whole candidate of another
        row is taken.
    """

    SHORT = "feature"

    feature: Name
    per_positive: Positive = 1
    distribution: Literal["uniform", "count"] = "uniform"
    candidate_features: Listed[Name] = ()


_TABLE_OPTIMIZER = {"name": "adagrad", "learning_rate": 0.05}


def _table_optimizer(value: Any) -> Mapping[str, Any]:
    """The optimizer with every hyperparameter; those without a `name` are the default optimizer's."""
    if value is None:
        raise ValueError("it must be a name, or a mapping with `name` and hyperparameters.")
    if isinstance(value, Mapping) and "name" not in value:
        value = {**_TABLE_OPTIMIZER, **value}
    return _optimizer(value) or {}


def _topology(value: str) -> str:
    try:
        shape_of(value)
    except ConfigError as error:
        raise ValueError(str(error).partition(": ")[2]) from error
    return value


class Training(Section):
    """How long and with what the model is trained. What it means in detail: `embedding_core.training.config`.

    Attributes:
      steps, epochs: one of the two; where neither is given, `DEFAULT_EPOCHS`.
      batch_size: examples of a global batch.
      table_optimizer: optimizer of the tables that have none of their own; without a `name`, the hyperparameters are
        of the default one.
      dense_optimizer: of everything else.
      decay: "linear" lets all learning rates, of tables too, fall to 0 at the last step.
      embedding_l2: weight of the mean squared norm of the looked-up vectors, added to the loss.
      eval_every: steps between evaluations; null is once per epoch, or ten times in `steps`.
      early_stopping: null trains to the end.
      checkpoint_every: steps between checkpoints to resume from; null is once per evaluation.
      nonfinite_rows: "error" refuses tables with a NaN or an infinity when they are saved and when they are taken out
        of the run; "keep" counts these rows in a warning and in the EmbeddingCheckpoint.
      shuffle_buffer: rows among which the next one is drawn.
      strategy: where it runs; "auto" is a TPU where there is one, else a GPU, else the CPU; "simulated_tpu" plays a TPU
        on the CPU.
      topology: of the TPU: a slice's name such as "v3-8", or for the simulated one also hosts x cores of each, "2x2".
      negatives: null where the data holds negatives.
    """

    steps: Positive | None = None
    epochs: Positive | None = None
    batch_size: Positive = 256
    table_optimizer: Annotated[Mapping[str, Any], BeforeValidator(_table_optimizer), Short("name")] = Field(
        default_factory=lambda: _table_optimizer(_TABLE_OPTIMIZER)
    )
    dense_optimizer: DenseOptimizer = DenseOptimizer()
    decay: Literal["none", "linear"] = "none"
    embedding_l2: NonNegative = 0.0
    eval_every: Positive | None = None
    early_stopping: EarlyStopping | None = EarlyStopping()
    checkpoint_every: Positive | None = None
    nonfinite_rows: NonfiniteRows = "error"
    shuffle_buffer: Positive = 65536
    strategy: Strategy = "auto"
    topology: (
        Annotated[
            str,
            Rule("a slice's name such as v3-8, or hosts x cores of each such as 2x2", text=True),
            AfterValidator(_topology),
        ]
        | None
    ) = None
    negatives: Negatives | None = None

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
        if self.steps is not None and self.epochs is not None:
            yield "epochs", f"is {self.epochs!r}, but `training.steps` is {self.steps!r}: leave out one of the two."
        if self.topology is not None:
            yield from self._topology_mistakes(self.topology)

    def _topology_mistakes(self, topology: str) -> Mistakes:
        if self.strategy in ("cpu", "gpu"):
            yield "topology", f"is {topology!r}, but `training.strategy` is {self.strategy!r}: leave out one."
        if "x" in topology and self.strategy != "simulated_tpu":
            yield "topology", f"is {topology!r}, but only a simulated TPU has no name: write a slice's, such as v3-8."
        hosts, cores, _ = shape_of(topology)
        rest = self.batch_size % (hosts * cores)
        if rest:
            below, above = self.batch_size - rest, self.batch_size - rest + hosts * cores
            rule = f"no multiple of the {hosts * cores} cores of `training.topology` {topology!r}"
            yield "batch_size", f"is {self.batch_size!r}, {rule}: write {below or above} or {above}."


class WarmStart(Section):
    """What the model starts from, and what becomes of what it does not have.

    In detail: `embedding_core.checkpoint.RemapPolicy` for the tables, `embedding_core.training.dense_start.DenseStart`
    for everything else.

    Attributes:
      checkpoint: "pushed" (of the newest version that was pushed and not rolled back), "served" (of the newest version
        in the serving folder), "trained" (of the newest training that finished, pushed or not), or the URI of an
        EmbeddingCheckpoint. With a word the first run starts without one. "latest" is the earlier name of "trained".
      repeated_data: data that the checkpoint was trained on is an "error", or it is trained on once more: "train", as
        windows of several days that overlap need. The same run given again comes from the cache with both.
      new_rows: a token that had no row starts from the table's "initializer", or from the out-of-vocabulary row that it
        was trained in so far: "oov".
      new_tables: a table that the checkpoint does not have (or that is no longer wanted) is an "error", or it starts
        anew: "initialize".
      changed_dim: another `dim` is an "error", starts the table anew: "reset", or keeps the columns that both have:
        "resize".
      changed_optimizer: another optimizer is an "error", starts all its slots anew: "reset", or keeps the accumulators
        of Adagrad, AdagradMomentum and FTRL: "convert".
      dense: "restore" takes the dense part's weights over if inputs, names and shapes agree, and else starts it from
        new weights and says why; "require" makes a difference an error; "reset" always starts from new weights.
      dense_optimizer: "restore" takes the dense optimizer's slots and iterations over with the weights; "reset" starts
        from new ones.
      ranges: "keep" scales dense features by the ranges that the earlier model was trained with, which its weights
        need; a feature whose column or log1p changed gets a new range, and then the dense part starts from new weights.
        "recompute" scales by this run's data.
    """

    SHORT = "checkpoint"

    checkpoint: Text
    repeated_data: Literal["error", "train"] = "error"
    new_rows: NewRows = "initializer"
    new_tables: NewTables = "error"
    changed_dim: ChangedDim = "error"
    changed_optimizer: ChangedOptimizer = "error"
    dense: DenseChoice = "restore"
    dense_optimizer: DenseOptimizerChoice = "restore"
    ranges: RangesChoice = "keep"


class Push(Section):
    """Where the served model goes.

    Attributes:
      destination: folder of versions, as TensorFlow Serving watches; null is `serving` in the work_dir.
      tolerance: largest difference between training and serving that is accepted.
      keep_last: how many versions are kept; null is all.
      rows_dtype: of the served tables; float16 halves them, and `tolerance` has to allow for what that costs.
    """

    SHORT = "destination"

    destination: Text | None = None
    tolerance: NonNegative = 1e-5
    keep_last: Positive | None = None
    rows_dtype: Literal["float32", "float16"] = "float32"
