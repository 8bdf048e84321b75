"""What a training run is told: frozen, keyword-only, JSON round trip, no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from embedding_core.config import NonfiniteRows
from embedding_core.errors import ConfigError
from embedding_core.planning.topology import shape_of

__all__ = [
    "Decay",
    "DenseOptimizer",
    "Distribution",
    "EarlyStopping",
    "Metric",
    "Negatives",
    "Strategy",
    "TrainingConfig",
]

Strategy: TypeAlias = Literal["auto", "cpu", "gpu", "tpu", "simulated_tpu"]
Decay: TypeAlias = Literal["none", "linear"]
Distribution: TypeAlias = Literal["uniform", "count"]
Metric: TypeAlias = Literal["loss", "auc"]
DenseOptimizer: TypeAlias = Literal["adam", "adamw", "adagrad", "ftrl", "nadam", "rmsprop", "sgd"]


def _require(ok: bool, owner: str, field: str, value: object, rule: str) -> None:
    if not ok:
        raise ConfigError(f"`{field}` of {owner} is {value!r}: it must be {rule}.")


def _is_whole(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _is_number(value: object, minimum: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and minimum <= value < math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Negatives:
    """Rows of label 0, made while training from rows of label 1.

    Each positive row is repeated with another token in `feature`. Where the candidate has further
    features (`candidate_features`), a token drawn alone would not fit them: the whole candidate of
    another row of the batch is taken instead.

    Attributes:
      feature: the categorical feature whose ids are replaced.
      per_positive: how many are drawn for each positive row; >= 1.
      distribution: "uniform" over the vocabulary's tokens, or by their "count" in the data. Candidates
        taken from the batch come as often as they are in the data, whatever this says.
      candidate_features: all features that describe the candidate, `feature` among them or not.
    """

    feature: str
    per_positive: int = 1
    distribution: Distribution = "uniform"
    candidate_features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidate_features", tuple(self.candidate_features))
        _require(_is_whole(self.per_positive, 1), "negatives", "per_positive", self.per_positive, "a whole number >= 1")
        allowed = get_args(Distribution)
        _require(
            self.distribution in allowed, "negatives", "distribution", self.distribution, f"one of {', '.join(allowed)}"
        )

    @property
    def within_batch(self) -> tuple[str, ...]:
        """The features taken together from another row of the batch; empty where ids are drawn."""
        others = tuple(name for name in self.candidate_features if name != self.feature)
        return (self.feature, *others) if others else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """When training ends before its last step; the best evaluated state is then restored.

    Attributes:
      metric: "auc" (higher is better) or "loss" (lower is better), of the validation part.
      patience: how many evaluations in a row may bring nothing better.
      min_delta: how much better is better.
      validation_fraction: share of the train split's rows that are not trained on, but evaluated to stop by; chosen by
        a hash of each row, whatever the eval split is chosen by.
    """

    metric: Metric = "auc"
    patience: int = 3
    min_delta: float = 0.0
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        share = self.validation_fraction
        rule = "a number above 0 and at most 0.5"
        _require(_is_number(share, 0) and 0 < share <= 0.5, "early_stopping", "validation_fraction", share, rule)
        allowed = get_args(Metric)
        _require(self.metric in allowed, "early_stopping", "metric", self.metric, f"one of {', '.join(allowed)}")
        _require(_is_whole(self.patience, 1), "early_stopping", "patience", self.patience, "a whole number >= 1")
        _require(_is_number(self.min_delta, 0), "early_stopping", "min_delta", self.min_delta, "a number >= 0")

    def is_better(self, value: float, best: float) -> bool:
        """Whether `value` beats `best`; anything beats NaN, which stands for no evaluation yet."""
        if math.isnan(best):
            return True
        return value > best + self.min_delta if self.metric == "auc" else value < best - self.min_delta


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a model is trained.

    Attributes:
      epochs: passes over the train split; exactly one of `epochs` and `steps` is given.
      steps: batches to train on, passing over the split as often as it takes.
      batch_size: rows of a batch, before negatives are added.
      optimizer: of the dense part: the name of one of Keras'.
      learning_rate: of the dense part. Tables have their own, in their table's optimizer.
      learning_rate_tables: for tables that configure no optimizer of their own (Adagrad), its rate.
      decay: "linear" lets all learning rates, of tables too, fall to 0 at the last step; "none" keeps them.
      embedding_l2: weight of the mean squared norm of the activations, added to the loss; regularises
        exactly the rows that a batch touches.
      class_weights: weights of label 0 and label 1 in the loss.
      eval_every: steps between evaluations; None is once per epoch, or ten times in `steps`.
      early_stopping: None trains to the last step, and keeps its state.
      checkpoint_every: steps between checkpoints to resume from; None is once per evaluation.
      nonfinite_rows: where a table or slot has a NaN or an infinity when it is saved, training ends with an "error",
        or these rows are counted in a warning and kept: "keep".
      shuffle_buffer: rows among which the next one is drawn.
      seed: of initial rows, dense variables, shuffle, dropout and negatives.
      negatives: for data with positives only, or None.
      strategy: where to train: "auto" takes a TPU where there is one, else a GPU, else the CPU; "simulated_tpu" plays
        a TPU on logical CPU devices.
      topology: of the simulated TPU, or the one that a real TPU must have: a slice's name such as "v3-8", or hosts x
        cores per host such as "2x2"; None is "1x2", or whatever TPU there is.

    Raises:
      ConfigError: a field breaks its rule.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 256
    optimizer: DenseOptimizer = "adam"
    learning_rate: float = 0.001
    learning_rate_tables: float = 0.05
    decay: Decay = "none"
    embedding_l2: float = 0.0
    class_weights: tuple[float, float] = (1.0, 1.0)
    eval_every: int | None = None
    early_stopping: EarlyStopping | None = None
    checkpoint_every: int | None = None
    nonfinite_rows: NonfiniteRows = "error"
    shuffle_buffer: int = 65536
    seed: int = 0
    negatives: Negatives | None = None
    strategy: Strategy = "auto"
    topology: str | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError(
                f"`epochs` of training is {self.epochs!r} and `steps` is {self.steps!r}: give one of the two."
            )
        for field in ("epochs", "steps", "batch_size", "eval_every", "checkpoint_every", "shuffle_buffer"):
            value = getattr(self, field)
            _require(value is None or _is_whole(value, 1), "training", field, value, "a whole number >= 1")
        for field in ("learning_rate", "learning_rate_tables", "embedding_l2"):
            value = getattr(self, field)
            _require(_is_number(value, 0), "training", field, value, "a number >= 0")
        object.__setattr__(self, "class_weights", tuple(self.class_weights))
        fits = len(self.class_weights) == 2 and all(_is_number(weight, 0) for weight in self.class_weights)
        _require(fits, "training", "class_weights", self.class_weights, "two numbers >= 0, of label 0 and of label 1")
        _require(_is_whole(self.seed, 0), "training", "seed", self.seed, "a whole number >= 0")
        choices = {"strategy": Strategy, "optimizer": DenseOptimizer, "decay": Decay, "nonfinite_rows": NonfiniteRows}
        for field, kind in choices.items():
            value, allowed = getattr(self, field), get_args(kind)
            _require(value in allowed, "training", field, value, f"one of {', '.join(allowed)}")

        if self.topology is not None:
            shape_of(self.topology)

    def to_json(self) -> dict[str, Any]:
        """The configuration as a JSON object; `from_json` gives an equal one."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainingConfig:
        """Read what `to_json` gave.

        Raises:
          ConfigError: an unknown field, or a value that breaks its rule.
        """
        try:
            negatives = data.get("negatives")
            stopping = data.get("early_stopping")
            nested = {
                "negatives": None if negatives is None else Negatives(**negatives),
                "early_stopping": None if stopping is None else EarlyStopping(**stopping),
            }
            return cls(**{**data, **nested})
        except TypeError as error:
            raise ConfigError(f"this is no training configuration: {error}.") from error
