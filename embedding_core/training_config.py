"""Declares how a model is trained: the sections `training` and `warm_start`, and the settings of the trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from embedding_core.config import NonfiniteRows
from embedding_core.errors import ConfigError
from embedding_core.optimizers import DEFAULT_OPTIMIZER, FTRL, Adam, DefaultedOptimizer, Optimizer
from embedding_core.planning.topology import shape_of
from embedding_core.schema import (
    FROM_LIST,
    FROM_NUMPY,
    Choice,
    Count,
    Json,
    Listed,
    Mistakes,
    Name,
    NonNegative,
    Positive,
    Rule,
    Section,
    Text,
    Whole,
)
from embedding_core.tasks import Task

DEFAULT_EPOCHS = 30
_SOFTMAX_BATCH_SIZE = 1024
_SOFTMAX_OPTIMIZER = Adam(learning_rate=0.005)


def _topology(name: str) -> str:
    try:
        shape_of(name)
    except ConfigError as error:
        raise ValueError(str(error).partition(": ")[2]) from error
    return name


_Topology = Annotated[
    str,
    Rule("a slice's name such as v3-8, or hosts x cores of each such as 2x2", text=True),
    AfterValidator(_topology),
]


def rate_scales_rows(optimizer: Optimizer) -> bool:
    """Return whether the learning rate scales whole rows, so that a rate that falls to 0 erases them."""
    return isinstance(optimizer, FTRL) and not optimizer.multiply_linear_by_learning_rate


class DenseOptimizer(Section):
    """The Keras optimizer of all weights outside of the tables.

    Attributes:
      name: name of the Keras optimizer.
      learning_rate: learning rate; 0 leaves these weights as they are.
    """

    SHORT = "name"

    name: Literal["adam", "adamw", "adagrad", "ftrl", "nadam", "rmsprop", "sgd"] = "adam"
    learning_rate: NonNegative = 0.001

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if self.name == "ftrl" and not self.learning_rate:
            yield "learning_rate", f"is {self.learning_rate!r}: ftrl divides by it; choose another optimizer."


class EarlyStopping(Section):
    """When training ends before its last step. The best evaluated state is restored, even without an early stop.

    Attributes:
      metric: metric of the validation rows: "auc" (higher is better, among states whose loss is at most 1% above the
        lowest so far; of equal AUCs, the lower loss) or "loss" (lower is better); null is "auc" if all labels are
        binary, else "loss".
      patience: number of consecutive evaluations without an improvement after which training ends; by AUC, a loss below
        all before it is an improvement too.
      min_delta: smallest change that counts as an improvement.
      validation_fraction: share of the train split's rows that are held back to judge the model. A hash of each row
        and of its place in its file chooses them, whatever the rule of `split` is; early stopping never sees the eval
        split.
      train_on_validation: whether the chosen state, or the last one if none was chosen, is then trained once on the
        validation rows, at the learning rates of the epoch before this state, so that they are learned as the others
        were. If the chosen step is within the first epoch, the pass is as short in proportion.
    """

    SHORT = "metric"

    metric: Literal["auc", "loss"] | None = None
    patience: Positive = 3
    min_delta: NonNegative = 0.0
    validation_fraction: Annotated[float, Field(gt=0, le=0.5), FROM_NUMPY, Rule("a number above 0 and at most 0.5")] = (
        0.1
    )
    train_on_validation: bool = True

    def metric_of(self, tasks: Sequence[Task]) -> Literal["auc", "loss"]:
        """Return the metric that judges a model of these tasks."""
        return self.metric or ("auc" if all(task.is_binary for task in tasks) else "loss")

    def is_better(self, metric: Literal["auc", "loss"], value: float, best: float) -> bool:
        """Return whether `value` is better than `best`; always if `best` is NaN, as before the first evaluation."""
        if math.isnan(best):
            return True
        return value > best + self.min_delta if metric == "auc" else value < best - self.min_delta


class Negatives(Section):
    """Negative rows (label 0) that training makes from positive rows, for data that holds positives only.

    Each positive row is repeated with another token in `feature`. If the candidate has further features
    (`candidate_features`), a token drawn alone would not fit them: the whole candidate of another row of the batch is
    taken instead.

    Attributes:
      feature: categorical feature whose token is replaced by a drawn one.
      per_positive: number of negatives made of each positive row.
      distribution: distribution of drawn tokens: "uniform" over the vocabulary, or by their "count" in the feature, not
        in others that share its vocabulary, such as a history. With either value, candidates taken from the batch are
        as frequent as in the data.
      candidate_features: all features that describe the candidate; `feature` may be listed or left out.
    """

    SHORT = "feature"

    feature: Name
    per_positive: Positive = 1
    distribution: Literal["uniform", "count"] = "uniform"
    candidate_features: Listed[Name] = ()

    @property
    def within_batch(self) -> tuple[str, ...]:
        """The features taken together from another row of the batch; empty if ids are drawn."""
        others = tuple(name for name in self.candidate_features if name != self.feature)
        return (self.feature, *others) if others else ()


class Softmax(Section):
    """A softmax over candidates, which trains a two-tower model for retrieval, from rows of label 1.

    Each row's candidate competes with those of the other rows of the global batch, and with drawn ones. The logits are
    corrected by how often a candidate is expected in a batch (logQ; Yi et al., 2019).

    If the candidate has further features (`candidate_features`), a drawn candidate has the features of its first row in
    the train split; candidates without such a row are not drawn.

    Attributes:
      feature: categorical feature that names the candidate, one token a row.
      in_batch: whether the candidates of other rows of the batch, also of rows of label 0, are negatives; if not, only
        drawn candidates are.
      sampled: number of candidates drawn for each batch.
      distribution: chance of a token to be drawn: "uniform" over the vocabulary, or by its "count" in the feature.
      temperature: number that the products of the towers' vectors are divided by; null is 0.1 if the model's argument
        `normalize` is true (0.15 for the model `two_tower`), else 1.
      correction: whether logits are corrected by logQ.
      remove_hits: whether to leave out accidental hits: negatives with the same id as the row's own candidate.
      hard_negatives: number of negatives that count for each row, largest logits first; null for all.
      candidate_features: all features that describe the candidate; `feature` may be listed or left out. The default is
        the model's argument of the same name.
    """

    SHORT = "feature"

    feature: Name
    in_batch: bool = True
    sampled: Count = 0
    distribution: Literal["uniform", "count"] = "uniform"
    temperature: Annotated[float, Field(ge=1e-6), FROM_NUMPY, Rule("a number of at least 0.000001")] | None = None
    correction: bool = True
    remove_hits: bool = True
    hard_negatives: Positive | None = None
    candidate_features: Listed[Name] = ()

    @property
    def other_features(self) -> tuple[str, ...]:
        """The features that describe a candidate beside the one that names it."""
        return tuple(name for name in self.candidate_features if name != self.feature)

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if not self.in_batch and not self.sampled:
            yield "sampled", "is 0, but `in_batch` is false: there would be no negatives."


class TrainingSettings(Section):
    """How long and with what a model is trained, without the optimizers of its tables.

    Attributes:
      steps: number of batches to train on, repeating the train split as often as needed; instead of `epochs`.
      epochs: passes over the train split; 30 if neither `steps` nor `epochs` is given.
      batch_size: rows of a global batch, before negatives are added; by default 1024 with `softmax`, whose negatives
        are the other rows.
      dense_optimizer: optimizer of all other weights.
      decay: "linear" decreases all learning rates, also those of tables, to 0 at the last planned step; "none" keeps
        them. The steps on the validation part follow `early_stopping.train_on_validation`.
      embedding_l2: weight of the mean squared norm of the looked-up vectors, which is added to the loss; it regularizes
        only the rows that a batch looks up.
      eval_every: steps between evaluations; null evaluates once per epoch or, with `steps`, ten times in all.
      early_stopping: when to stop early; null trains to the last step, and keeps the last state.
      checkpoint_every: steps between checkpoints to resume from; null is once per evaluation.
      nonfinite_rows: "error" refuses to write rows with NaN or infinity to a checkpoint. "keep" writes these rows, and
        counts them in a warning and in the EmbeddingCheckpoint.
      shuffle_buffer: number of rows from which the next row is drawn.
      strategy: device to train on: "auto" is a TPU if there is one, else a GPU, else the CPU; "simulated_tpu" emulates
        a TPU on logical CPU devices.
      topology: shape of the TPU: a slice's name such as "v3-8"; for a simulated TPU also the number of hosts and the
        cores of each host, such as "2x2". Null is "1x2" for a simulated TPU, and accepts any real TPU. For a slice with
        SparseCores (v5p, v6e) their limits are computed from the data.
      negatives: negatives to make while training; null if the data holds its own.
      softmax: softmax over candidates that trains a model with two towers, instead of the cross-entropy of single rows.
    """

    steps: Positive | None = None
    epochs: Positive | None = None
    batch_size: Positive = 256
    dense_optimizer: DenseOptimizer = DenseOptimizer()
    decay: Literal["none", "linear"] = "none"
    embedding_l2: NonNegative = 0.0
    eval_every: Positive | None = None
    early_stopping: EarlyStopping | None = EarlyStopping()
    checkpoint_every: Positive | None = None
    nonfinite_rows: NonfiniteRows = "error"
    shuffle_buffer: Positive = 65536
    strategy: Annotated[str, Choice("training.strategy", "auto", "cpu", "gpu", "tpu", "simulated_tpu")] = "auto"
    topology: _Topology | None = None
    negatives: Negatives | None = None
    softmax: Softmax | None = None

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """Fill in the defaults that depend on other keys."""
        if not isinstance(values, Mapping):
            return values
        has_length = values.get("steps") is not None or values.get("epochs") is not None
        epochs = {} if has_length else {"epochs": DEFAULT_EPOCHS}
        size = {} if values.get("softmax") is None else {"batch_size": _SOFTMAX_BATCH_SIZE}
        return {**size, **values, **epochs}

    @property
    def draws_negatives(self) -> bool:
        """Whether training makes negatives, so that the data may hold positives alone."""
        return self.negatives is not None or self.softmax is not None

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if self.steps is not None and self.epochs is not None:
            yield "epochs", f"is {self.epochs!r}, but `steps` is {self.steps!r}: leave out one of the two."
        if self.softmax is not None and self.negatives is not None:
            yield "negatives", "is given, and so is `softmax`: draw candidates with `softmax.sampled`; leave one out."
        if self.topology is not None:
            yield from self._topology_mistakes(self.topology)

    def _topology_mistakes(self, topology: str) -> Mistakes:
        if self.strategy not in ("auto", "tpu", "simulated_tpu"):
            yield "topology", f"is {topology!r}, but `strategy` is {self.strategy!r}: leave out one."
        if "x" in topology and self.strategy != "simulated_tpu":
            yield "topology", f"is {topology!r}, but only a simulated TPU has no name: write a slice's, such as v3-8."
        hosts, cores, _, sparse_cores = shape_of(topology)
        parts, what = hosts * cores * max(1, sparse_cores), "SparseCores" if sparse_cores else "cores"
        rest = self.batch_size % parts
        if rest:
            below, above = self.batch_size - rest, self.batch_size - rest + parts
            rule = f"not a multiple of the {parts} {what} of `topology` {topology!r}"
            yield "batch_size", f"is {self.batch_size!r}, {rule}: write {below or above} or {above}."


class Training(TrainingSettings):
    """How long and with what the model is trained: the section `training` of the YAML file.

    Attributes:
      table_optimizer: optimizer of the tables for which `tables` sets none; without a `name`, the hyperparameters are
        those of the default optimizer. With `softmax`, the default is Adam with a learning rate of 0.005.
    """

    table_optimizer: DefaultedOptimizer = DEFAULT_OPTIMIZER

    @model_validator(mode="before")
    @classmethod
    def _default_optimizer(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("softmax") is None:
            return values
        given = values.get("table_optimizer", {})
        is_named = not isinstance(given, Mapping) or "name" in given
        return values if is_named else {**values, "table_optimizer": {**_SOFTMAX_OPTIMIZER.to_mapping(), **given}}


class TrainingConfig(TrainingSettings):
    """The settings of the trainer. Its tables come with their optimizers.

    Attributes:
      class_weights: weights of label 0 and label 1 in the loss.
      seed: seed of initial rows, dense variables, shuffle, dropout and negatives.
    """

    class_weights: Annotated[
        tuple[NonNegative, NonNegative],
        FROM_LIST,
        FROM_NUMPY,
        Rule("two numbers of at least 0, of label 0 and of label 1"),
    ] = (1.0, 1.0)
    seed: Count = 0

    @classmethod
    def from_mapping(cls, values: Any) -> Self:
        """Read what `to_mapping` returned, or the older form of releases up to 0.1.0 (with `learning_rate_tables`).

        Raises:
          ConfigError: an unknown key, or a value that breaks its rule; a line for each.
        """
        if isinstance(values, Mapping) and "learning_rate_tables" in values:
            values = dict(values)
            values["dense_optimizer"] = {"name": values.pop("optimizer"), "learning_rate": values.pop("learning_rate")}
            del values["learning_rate_tables"]
        return super().from_mapping(values)


# Declares the section `warm_start` of the YAML file, and its parts for the tables and for the dense part.

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
        slots from their initial values, "convert" keeps the accumulators of Adagrad, AdagradMomentum and FTRL. `beta2`
        of AdagradMomentum that is 1 for one of them alone is such a change. If FTRL or one of its hyperparameters is
        new, its linear terms are computed from the rows, because FTRL would lose or rescale the rows otherwise.
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
    PATHS = ("checkpoint",)

    checkpoint: Text
    repeated_data: Literal["error", "train"] = "error"

    def row_choices(self) -> Json:
        """Give the choices for rows, as fields of `RemapPolicy`."""
        return {key: value for key, value in self.to_mapping().items() if key in _RowChoices.model_fields}

    def dense_choices(self) -> Json:
        """Give the choices for the dense part, as fields of `DenseStart`."""
        return {key: value for key, value in self.to_mapping().items() if key in _DenseChoices.model_fields}
