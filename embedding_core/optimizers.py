"""The five table optimizers of the TPU's embedding engine, as data.

Each class is a frozen dataclass with the names, defaults and meaning of its namesake in
``tf.tpu.experimental.embedding``; the update rules themselves are in ``update_rules.py``.
Unlike upstream, a hyperparameter out of range is refused by name when the object is made.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from embedding_core.errors import ConfigError

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "LearningRate",
    "Optimizer",
    "Slot",
    "optimizer_from_json",
    "optimizer_names",
    "optimizer_to_json",
]

LearningRate: TypeAlias = float | Callable[[], Any]
Clip: TypeAlias = float | tuple[float | None, float | None] | None


class Slot(NamedTuple):
    """One slot variable of a table: its checkpoint name and the value its rows start from."""

    name: str
    initial: float


def _require(ok: bool, owner: object, field: str, rule: str) -> None:
    if not ok:
        value = getattr(owner, field)
        raise ConfigError(f"`{field}` of {type(owner).__name__} is {value!r}: it must be {rule}.")


def _is_finite(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_clip(value: object) -> bool:
    """Whether a value may be `clipvalue`: None, a number, or two of them."""
    bounds = value if isinstance(value, tuple) else (value, value)
    return len(bounds) == 2 and all(bound is None or _is_finite(bound) for bound in bounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What all five have in common.

    Attributes:
      learning_rate: a float >= 0, or a callable without arguments that returns a float32 scalar
        tensor and is evaluated at every step.
      use_gradient_accumulation: whether the gradients of one row are summed over the global batch
        before one update (True), or applied one by one (False).
      clip_weight_min, clip_weight_max: bounds of a row after its update, or None.
      weight_decay_factor: decoupled decay of the rows touched by a step, or None.
      multiply_weight_decay_factor_by_learning_rate: whether the decay is also scaled by the rate.
      clipvalue: bounds of the accumulated gradient: c for (-c, c), or (min, max), or None.

    Raises:
      ConfigError: a hyperparameter is out of range.
    """

    learning_rate: LearningRate = 0.001
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clipvalue: Clip = None

    def __post_init__(self) -> None:
        self._check_kinds()
        rate = self.learning_rate
        _require(
            callable(rate) or (_is_finite(rate) and rate >= 0),
            self,
            "learning_rate",
            "a finite float >= 0, or a callable without arguments",
        )
        low, high = self.clip_weight_min, self.clip_weight_max
        if low is not None and high is not None:
            _require(low <= high, self, "clip_weight_min", f"at most `clip_weight_max`, {high!r}")
        if self.weight_decay_factor is not None:
            _require(self.weight_decay_factor >= 0, self, "weight_decay_factor", "None or >= 0")
        elif self.multiply_weight_decay_factor_by_learning_rate:
            rule = "None where `weight_decay_factor` is None, as it would do nothing"
            _require(False, self, "multiply_weight_decay_factor_by_learning_rate", rule)
        if isinstance(self.clipvalue, list):
            object.__setattr__(self, "clipvalue", tuple(self.clipvalue))
        _require(_is_clip(self.clipvalue), self, "clipvalue", "None, a float >= 0, or (min, max)")
        low, high = self.gradient_bounds
        _require(low is None or high is None or low <= high, self, "clipvalue", "None, a float >= 0, or (min, max)")
        if self.clipvalue is not None:
            _require(
                self.use_gradient_accumulation, self, "use_gradient_accumulation", "True where `clipvalue` is given"
            )

    def _check_kinds(self) -> None:
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            if value is None and kind.endswith("None"):
                continue
            if kind.startswith("float"):
                _require(_is_finite(value), self, field.name, "a finite number")
            elif kind.startswith("bool"):
                _require(isinstance(value, bool), self, field.name, "true or false")

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent: ``w -= lr * g``."""

    learning_rate: LearningRate = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011), without an epsilon: ``a += g^2; w -= lr * g / sqrt(a)``."""

    initial_accumulator_value: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.initial_accumulator_value > 0, self, "initial_accumulator_value", "> 0")

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("accumulators", self.initial_accumulator_value),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdagradMomentum(Optimizer):
    """Adagrad with momentum, a general exponent and an optional decay of the accumulator.

    ``a = a + g^2`` where beta2 is 1, else ``beta2 a + (1 - beta2) g^2``;
    ``m = momentum m + s`` with ``s = g (a + epsilon)^(-1/exponent)``;
    ``w -= lr (momentum m + s)`` with use_nesterov, else ``w -= lr m``.
    """

    momentum: float = 0.0
    use_nesterov: bool = False
    exponent: float = 2.0
    beta2: float = 1.0
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.momentum >= 0, self, "momentum", ">= 0")
        _require(self.exponent > 0, self, "exponent", "> 0")
        _require(0 < self.beta2 <= 1, self, "beta2", "in (0, 1]")
        _require(self.epsilon > 0, self, "epsilon", "> 0")

    @property
    def slots(self) -> tuple[Slot, ...]:
        return Slot("accumulators", 0.0), Slot("momenta", 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """The TPU's Adam: Adam (Kingma and Ba, 2015) without bias correction, lazy by default.

    ``m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr m / (sqrt(v) + eps)``, or
    ``lr m / sqrt(v + eps^2)`` with sum_inside_sqrt. Lazy: rows without a gradient stay as they are.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 <= self.beta_1 < 1, self, "beta_1", "in [0, 1)")
        _require(0 <= self.beta_2 < 1, self, "beta_2", "in [0, 1)")
        _require(self.epsilon > 0, self, "epsilon", "> 0")
        if not self.lazy_adam:
            _require(
                self.use_gradient_accumulation, self, "use_gradient_accumulation", "True where `lazy_adam` is False"
            )

    @property
    def slots(self) -> tuple[Slot, ...]:
        return Slot("momenta", 0.0), Slot("velocities", 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FTRL(Optimizer):
    """FTRL-proximal (McMahan et al., 2013). A row's first weight is overwritten at its first update."""

    learning_rate_power: float = -0.5
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    multiply_linear_by_learning_rate: bool = False
    allow_zero_accumulator: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.learning_rate_power <= 0, self, "learning_rate_power", "<= 0")
        _require(self.l1_regularization_strength >= 0, self, "l1_regularization_strength", ">= 0")
        _require(self.l2_regularization_strength >= 0, self, "l2_regularization_strength", ">= 0")
        _require(self.beta >= 0, self, "beta", ">= 0")
        floor = ">= 0" if self.allow_zero_accumulator else "> 0, or 0 with `allow_zero_accumulator`"
        low_enough = self.initial_accumulator_value > 0 or (
            self.initial_accumulator_value == 0 and self.allow_zero_accumulator
        )
        _require(low_enough, self, "initial_accumulator_value", floor)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return Slot("accumulators", self.initial_accumulator_value), Slot("linears", 0.0)


_BY_NAME: Mapping[str, type[Optimizer]] = {
    cls.__name__.lower(): cls for cls in (SGD, Adagrad, AdagradMomentum, Adam, FTRL)
}


def optimizer_names() -> tuple[str, ...]:
    """The names that `optimizer_from_json` knows, lower-case."""
    return tuple(_BY_NAME)


def optimizer_to_json(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer as a JSON object: its name and every hyperparameter.

    Raises:
      ConfigError: the learning rate is a callable, which JSON cannot hold.
    """
    if callable(optimizer.learning_rate):
        raise ConfigError(
            f"`learning_rate` of {type(optimizer).__name__} is a callable: JSON holds numbers only; "
            "pass a float here and the callable where the engine is made."
        )
    return {"name": type(optimizer).__name__.lower()} | dataclasses.asdict(optimizer)


def optimizer_from_json(value: str | Mapping[str, Any]) -> Optimizer:
    """The optimizer that a name, or an object with a `name` and hyperparameters, describes.

    Raises:
      ConfigError: an unknown optimizer or hyperparameter, or a value out of range.
    """
    fields = {"name": value} if isinstance(value, str) else dict(value)
    name = str(fields.pop("name", "")).lower()
    cls = _BY_NAME.get(name)
    if cls is None:
        raise ConfigError(f"optimizer `name` is {name!r}: it must be one of {', '.join(_BY_NAME)}.")
    known = [field.name for field in dataclasses.fields(cls)]
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise ConfigError(f"{cls.__name__} has no hyperparameter {unknown[0]!r}: it has {', '.join(known)}.")
    return cls(**fields)
