"""Declares the five table optimizers of the TPU's embedding engine.

Each class has the hyperparameters of the class of the same name in ``tf.tpu.experimental.embedding``, with the same
defaults and meaning; the update rules are in ``update_rules.py``. Unlike upstream, the constructor raises an error that
names a hyperparameter out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from embedding_core.errors import ConfigError
from embedding_core.schema import (
    FROM_LIST,
    FROM_NUMPY,
    ChosenBy,
    Json,
    Mistakes,
    NonNegative,
    Number,
    PositiveNumber,
    Rule,
    Section,
    read,
)

_CLIP = "None, a float >= 0, or (min, max)"
LearningRate: TypeAlias = Annotated[
    NonNegative | SkipJsonSchema[Callable[[], Any]], Rule("a finite float >= 0, or a callable without arguments")
]
Clip: TypeAlias = Annotated[Number | Annotated[tuple[Number | None, Number | None], FROM_LIST] | None, Rule(_CLIP)]
_Beta = Annotated[float, Field(ge=0, lt=1), FROM_NUMPY, Rule("a number from 0 to below 1")]


class Slot(NamedTuple):
    """One slot variable of a table: its checkpoint name and the initial value of its elements."""

    name: str
    initial: float


class Optimizer(Section):
    """Base class of the five optimizers, with the hyperparameters that they share.

    Attributes:
      name: name of the optimizer, lower-case.
      learning_rate: learning rate, at least 0; in Python also a callable without arguments that returns a float32
        scalar tensor and is evaluated at every step.
      use_gradient_accumulation: whether the gradients of one row are summed over the global batch
        before one update (True), or applied one by one (False).
      clip_weight_min, clip_weight_max: bounds of a row after its update; null for no bound.
      weight_decay_factor: decoupled decay of the rows touched by a step; null for none.
      multiply_weight_decay_factor_by_learning_rate: whether the decay is also multiplied by the learning rate.
      clipvalue: bounds of the accumulated gradient: c for (-c, c), or (min, max); null for none.

    Raises:
      ConfigError: a hyperparameter is out of range.
    """

    SHORT = "name"

    name: str = ""
    learning_rate: LearningRate = 0.001
    use_gradient_accumulation: bool = True
    clip_weight_min: Number | None = None
    clip_weight_max: Number | None = None
    weight_decay_factor: NonNegative | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clipvalue: Clip = None

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several hyperparameters."""
        low, high = self.clip_weight_min, self.clip_weight_max
        if low is not None and high is not None and low > high:
            yield "clip_weight_min", f"is {low!r}: it must be at most `clip_weight_max`, {high!r}."
        if self.weight_decay_factor is None and self.multiply_weight_decay_factor_by_learning_rate:
            rule = "it must be None if `weight_decay_factor` is None, as it would do nothing."
            yield "multiply_weight_decay_factor_by_learning_rate", f"is True: {rule}"
        low, high = self.gradient_bounds
        if low is not None and high is not None and low > high:
            yield "clipvalue", f"is {self.clipvalue!r}: it must be {_CLIP}."
        if self.clipvalue is not None and not self.use_gradient_accumulation:
            yield "use_gradient_accumulation", "is False: it must be True if `clipvalue` is given."

    @property
    def moves_all_rows(self) -> bool:
        """Whether a step also moves the rows that it does not look up."""
        return False

    @classmethod
    def owner(cls, values: Any, path: tuple[str | int, ...] = ()) -> str:
        """Name the optimizer in error messages: the name of its class."""
        return cls.__name__

    @classmethod
    def hyperparameters(cls) -> tuple[str, ...]:
        """Return the names of the hyperparameters, in the order of their declaration."""
        return tuple(name for name in cls.model_fields if name != "name")

    def to_mapping(self) -> Json:
        """Return the name and every hyperparameter as a JSON object.

        Raises:
          ConfigError: the learning rate is a callable, which JSON cannot hold.
        """
        if callable(self.learning_rate):
            raise ConfigError(
                f"`learning_rate` of {type(self).__name__} is a callable: JSON holds numbers only; "
                "pass a float here, and the callable to the engine."
            )
        return super().to_mapping()

    @property
    def gradient_bounds(self) -> tuple[float | None, float | None]:
        """The (min, max) that `clipvalue` means; None for no bound."""
        if self.clipvalue is None:
            return None, None
        if isinstance(self.clipvalue, tuple):
            return self.clipvalue
        return -self.clipvalue, self.clipvalue

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slot variables, in the order in which the update rule takes them."""
        return ()


class SGD(Optimizer):
    """Stochastic gradient descent: ``w -= lr * g``."""

    name: Literal["sgd"] = "sgd"
    learning_rate: LearningRate = 0.01


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011), without an epsilon: ``a += g^2; w -= lr * g / sqrt(a)``.

    Attributes:
      initial_accumulator_value: first value of the accumulators.
    """

    name: Literal["adagrad"] = "adagrad"
    initial_accumulator_value: PositiveNumber = 0.1

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("accumulators", self.initial_accumulator_value),)


class AdagradMomentum(Optimizer):
    """Adagrad with momentum, a general exponent and an optional decay of the accumulator.

    ``a = a + g^2`` if beta2 is 1, else ``beta2 a + (1 - beta2) g^2``;
    ``m = momentum m + s`` with ``s = g (a + epsilon)^(-1/exponent)``;
    ``w -= lr (momentum m + s)`` with use_nesterov, else ``w -= lr m``.

    Attributes:
      momentum: share of the momentum that a step keeps.
      use_nesterov: whether to use Nesterov's momentum.
      exponent: degree of the root of the accumulator that a gradient is divided by; 2 is the square root.
      beta2: decay of the accumulator; 1 sums the squared gradients without decay.
      epsilon: number added to the accumulator before its root is taken.
    """

    name: Literal["adagradmomentum"] = "adagradmomentum"
    momentum: NonNegative = 0.0
    use_nesterov: bool = False
    exponent: PositiveNumber = 2.0
    beta2: Annotated[float, Field(gt=0, le=1), FROM_NUMPY, Rule("a number above 0 and at most 1")] = 1.0
    epsilon: PositiveNumber = 1e-10

    @property
    def slots(self) -> tuple[Slot, ...]:
        return Slot("accumulators", 0.0), Slot("momenta", 0.0)


class Adam(Optimizer):
    """The TPU's Adam: Adam (Kingma and Ba, 2015) without bias correction, lazy by default.

    ``m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr m / (sqrt(v) + eps)``, or
    ``lr m / sqrt(v + eps^2)`` with sum_inside_sqrt. Lazy: rows without a gradient stay as they are.

    Attributes:
      beta_1: decay of the momenta.
      beta_2: decay of the velocities.
      epsilon: number that keeps the divisor above 0.
      lazy_adam: whether only the rows of a step are updated; False updates every row in every step.
      sum_inside_sqrt: whether epsilon^2 is added under the root, instead of epsilon beside it.
    """

    name: Literal["adam"] = "adam"
    beta_1: _Beta = 0.9
    beta_2: _Beta = 0.999
    epsilon: PositiveNumber = 1e-7
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several hyperparameters."""
        yield from super().mistakes()
        if not self.lazy_adam and not self.use_gradient_accumulation:
            yield "use_gradient_accumulation", "is False: it must be True if `lazy_adam` is False."

    @property
    def moves_all_rows(self) -> bool:
        return not self.lazy_adam

    @property
    def slots(self) -> tuple[Slot, ...]:
        return Slot("momenta", 0.0), Slot("velocities", 0.0)


class FTRL(Optimizer):
    """FTRL-proximal (McMahan et al., 2013).

    Every update computes a row from its slots, so most of a row's initial value is lost in its first update.

    Attributes:
      learning_rate_power: power of the accumulator that scales the learning rate; at most 0.
      l1_regularization_strength: weight of the L1 norm.
      l2_regularization_strength: weight of the squared L2 norm.
      beta: number added to the root of the accumulator.
      initial_accumulator_value: first value of the accumulators.
      multiply_linear_by_learning_rate: whether the linear terms are stored multiplied by the learning rate.
      allow_zero_accumulator: whether the accumulators may start at 0.
    """

    name: Literal["ftrl"] = "ftrl"
    learning_rate_power: Annotated[float, Field(le=0), FROM_NUMPY, Rule("a number of at most 0")] = -0.5
    l1_regularization_strength: NonNegative = 0.0
    l2_regularization_strength: NonNegative = 0.0
    beta: NonNegative = 0.0
    initial_accumulator_value: NonNegative = 0.1
    multiply_linear_by_learning_rate: bool = False
    allow_zero_accumulator: bool = False

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several hyperparameters."""
        yield from super().mistakes()
        if not self.initial_accumulator_value and not self.allow_zero_accumulator:
            rule = "it must be a number above 0, or 0 with `allow_zero_accumulator`."
            yield "initial_accumulator_value", f"is {self.initial_accumulator_value!r}: {rule}"

    @property
    def slots(self) -> tuple[Slot, ...]:
        return Slot("accumulators", self.initial_accumulator_value), Slot("linears", 0.0)


_KnownOptimizer: TypeAlias = SGD | Adagrad | AdagradMomentum | Adam | FTRL
AnyOptimizer = Annotated[_KnownOptimizer, ChosenBy("name")]
DEFAULT_OPTIMIZER = Adagrad(learning_rate=0.01, initial_accumulator_value=0.001)
"""Optimizer of tables for which none is set.

The loss is a mean over the batch, so the gradient of a row that a batch has once is divided by the batch size. From an
accumulator of 0.1, the default of Adagrad, such a row would hardly be learned (decision 12).
"""
DefaultedOptimizer = Annotated[_KnownOptimizer, ChosenBy("name", default=DEFAULT_OPTIMIZER.to_mapping())]
"""An optimizer; a mapping without a `name` changes hyperparameters of the tables' default optimizer."""


def optimizer_from_json(value: str | Mapping[str, Any]) -> AnyOptimizer:
    """Create an optimizer from its name, or from an object with a `name` and hyperparameters.

    Raises:
      ConfigError: an unknown optimizer or hyperparameter, or a value out of range.
    """
    optimizer: AnyOptimizer = read(AnyOptimizer, value, "the optimizer")
    return optimizer
