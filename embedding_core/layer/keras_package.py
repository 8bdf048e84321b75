"""Translates Keras optimizers into those of the TPU's tables, and unscales gradients, whichever Keras it is.

`Keras` holds what the two packages share and declares in what they differ; `keras_optimizers` (tf_keras) and `keras3`
complete it. `translate.OPTIMIZERS` lists the hyperparameters that are passed on; all others must keep their defaults.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.engines.engine import Gradients
from embedding_core.errors import ConfigError, EngineError
from embedding_core.optimizers import Optimizer
from embedding_core.translate import OPTIMIZERS, GivenOptimizer, KerasSlots, OptimizerKind

_BY_NAME = {kind.keras.lower(): kind.tensorflow for kind in OPTIMIZERS if kind.keras}
_TPU_CLASSES = tuple(kind.tensorflow for kind in OPTIMIZERS)
# Parameters that may differ without changing the results, or that are handled separately.
FREE = frozenset({"name", "learning_rate", "jit_compile", "is_legacy_optimizer"})
_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")
_TITLES = {"tf_keras": "tf_keras", "keras": "Keras 3"}

LossScaler: TypeAlias = Any  # a LossScaleOptimizer of Keras, or None


@dataclass(frozen=True)
class CopiedOptimizer:
    """A Keras optimizer that was made from a configuration: a copy, which no model steps."""

    optimizer: GivenOptimizer


class Keras(abc.ABC):
    """A package of Keras.

    Attributes:
      name: "tf_keras" or "keras", which is Keras 3.
      package: the module.
      kinds: the optimizers that have a namesake on the TPU.
      loss_scaler: the class LossScaleOptimizer.
    """

    name: str
    package: Any
    kinds: Mapping[type, OptimizerKind]
    loss_scaler: Any

    @abc.abstractmethod
    def is_optimizer(self, optimizer: GivenOptimizer) -> bool:
        """Return whether the object is an optimizer of this package."""

    @abc.abstractmethod
    def rate_of(self, optimizer: GivenOptimizer, config: Mapping[str, Any]) -> Callable[[], tf.Tensor]:
        """Return a function that reads the learning rate of an optimizer, whose configuration is given."""

    @abc.abstractmethod
    def running_loss_scaler(self) -> LossScaler:
        """Return the LossScaleOptimizer that computes gradients now, as in `model.fit`; else None."""

    @abc.abstractmethod
    def scale_of(self, scaler: LossScaler) -> Any:
        """Return the factor by which a LossScaleOptimizer has multiplied the loss of this step."""

    def slots_of(self, optimizer: GivenOptimizer, kind: OptimizerKind) -> KerasSlots | None:
        """Return what makes a table's slots in an optimizer, or None if the optimizer makes its own."""
        return None

    def table_optimizer(self, optimizer: GivenOptimizer) -> GivenOptimizer:
        """Convert an optimizer that a user may pass to the layer into one that tables are trained with.

        Args:
          optimizer: "sgd", "adagrad", "adam" or "ftrl" (the TPU's, with its default values), a Keras optimizer, one of
            `tf.tpu.experimental.embedding` or of `embedding_core`, or None.

        Raises:
          ConfigError (ValueError): anything else.
        """
        if optimizer is None or isinstance(optimizer, (*_TPU_CLASSES, Optimizer)):
            return optimizer
        if isinstance(optimizer, CopiedOptimizer):
            return self.translate(optimizer.optimizer, copied=True)
        if isinstance(optimizer, str):
            if optimizer not in _BY_NAME:
                raise ConfigError(f"Unknown optimizer name {optimizer!r}. Please use one of {', '.join(_BY_NAME)}.")
            return _BY_NAME[optimizer]()
        if self.is_optimizer(optimizer):
            return self.translate(optimizer)
        package = type(optimizer).__module__.partition(".")[0]
        if package in _TITLES and package != self.name:
            raise ConfigError(
                f"`optimizer` is {type(optimizer)}, of {_TITLES[package]}: this layer is for {_TITLES[self.name]}; use "
                f"{self.name}.optimizers."
            )
        raise ConfigError(
            f"Unknown optimizer type {type(optimizer)}. Please pass 'sgd', 'adagrad', 'adam' or 'ftrl', an optimizer "
            f"of {_TITLES[self.name]}, or one under tf.tpu.experimental.embedding."
        )

    def translate(self, optimizer: GivenOptimizer, *, copied: bool = False) -> GivenOptimizer:
        """Translate a Keras optimizer to its namesake in `tf.tpu.experimental.embedding`.

        Args:
          optimizer: SGD, Adagrad, Adam or Ftrl of this package.
          copied: whether it is a copy, which no model steps.

        Raises:
          ConfigError (ValueError): another class, or a hyperparameter that the TPU's optimizers do not have.
        """
        if isinstance(optimizer, self.loss_scaler):
            raise ConfigError(
                f"Keras optimizer {type(optimizer).__name__} is unsupported for TPU embedding: pass its "
                "inner_optimizer, and set the layer's loss_scale_optimizer."
            )
        kind = self.kinds.get(type(optimizer))
        if kind is None:
            names = sorted({cls.__name__ for cls in self.kinds})
            raise ConfigError(
                f"Keras optimizer {type(optimizer).__name__} is unsupported for TPU embedding: the TPU's tables can be "
                f"trained by {', '.join(names)} of {_TITLES[self.name]}; give this layer its own optimizer."
            )
        config = optimizer.get_config()
        _refuse_changed(optimizer, config, kind)
        arguments = {name: config[name] for name in kind.passed}
        slots = None if copied else self.slots_of(optimizer, kind)
        if slots is not None:
            arguments["slot_variable_creation_fn"] = slots
        rate = FollowedRate(self, optimizer, self.rate_of(optimizer, config), copied=copied)
        return kind.tensorflow(learning_rate=rate, **arguments)


class FollowedRate:
    """The learning rate of a Keras optimizer at this step.

    Attributes:
      optimizer: the optimizer that is read.
      copied: whether `optimizer` is a copy, which no model steps; reading its learning rate is an error.
    """

    def __init__(self, keras: Keras, optimizer: GivenOptimizer, read: Callable[[], tf.Tensor], *, copied: bool):
        self.optimizer = optimizer
        self.copied = copied
        self._keras = keras
        self._read = read

    def __call__(self) -> tf.Tensor:
        """Return the learning rate, a float32 scalar.

        Raises:
          EngineError (RuntimeError): the optimizer is a copy.
        """
        if self.copied:
            raise EngineError(
                f"The {type(self.optimizer).__name__} of these tables was read from a configuration (load_model, "
                "clone_model, from_config): it is a copy, which no model steps. Before you train set the layer's "
                "`keras_optimizer` to the optimizer that is stepped (`layer.keras_optimizer = model.optimizer`); if "
                "a table has its own Keras optimizer, make the model in code and load its weights."
            )
        return self._read()

    def follow(self, own: GivenOptimizer, optimizer: GivenOptimizer) -> None:
        """Read another optimizer's learning rate.

        Args:
          own: the optimizer of `tf.tpu.experimental.embedding` that has this rate.
          optimizer: a Keras optimizer of the same hyperparameters.

        Raises:
          ConfigError (ValueError): an optimizer of another kind, or with other hyperparameters.
        """
        given = self._keras.translate(optimizer)
        if type(given) is not type(own) or _hyperparameters(given) != _hyperparameters(own):
            raise ConfigError(
                f"`keras_optimizer` is {type(optimizer).__name__} with {_hyperparameters(given)}: the tables are "
                f"configured with {type(own).__name__} and {_hyperparameters(own)}; give the same, or make the layer "
                "with another optimizer."
            )
        self.optimizer, self._read, self.copied = optimizer, given.learning_rate, False


def _hyperparameters(optimizer: GivenOptimizer) -> dict[str, Any]:
    apart = ("learning_rate", "slot_variable_creation_fn")
    return {name: value for name, value in vars(optimizer).items() if name not in apart}


def followed(optimizer: GivenOptimizer) -> FollowedRate | None:
    """Return the learning rate of a table optimizer if it follows a Keras optimizer, else None."""
    rate = getattr(optimizer, "learning_rate", None)
    return rate if isinstance(rate, FollowedRate) else None


def _refuse_changed(optimizer: GivenOptimizer, config: Mapping[str, Any], kind: OptimizerKind) -> None:
    reference = type(optimizer)()
    current, defaults = _compared(optimizer, config), _compared(reference, reference.get_config())
    for name in sorted(set(current) - set(kind.passed) - FREE):
        if current[name] != defaults.get(name):
            raise ConfigError(
                f"Optimizer parameter {name} is unsupported for TPU embeddings: `{name}` of Keras' "
                f"{type(optimizer).__name__} is {current[name]!r} and must stay {defaults.get(name)!r}. Give this "
                "layer its own optimizer, and keep yours for the dense layers."
            )


def _compared(optimizer: GivenOptimizer, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration, and the arguments that Keras leaves out of it."""
    arguments = (*inspect.signature(type(optimizer)).parameters, *_CLIPPING)
    apart = {name: getattr(optimizer, name, None) for name in arguments if name not in config and name not in FREE}
    return {**apart, **config}


# Divides the gradients that train tables by the scale of a LossScaleOptimizer.
#
# A layer that trains its tables receives the gradients before the optimizer does, so they are those of the scaled loss.
# No public API tells whether a loss was scaled: TensorFlow calls a gradient function with tensors only, a tape does not
# know the optimizer, a Keras layer knows neither its model nor the model's optimizer, and LossScaleOptimizer does not
# list its instances. So `model.fit` and `minimize` are recognized on the call stack, and any other training loop that
# scales its loss must set the layer's `loss_scale_optimizer`. Under the policy 'mixed_float16', of the layer or of
# Keras, computing a gradient without this setting raises an error: after a wrong guess, at the default initial scale,
# the tables would be trained 32,768 times too fast.


class LossScale:
    """Finds the scale of one layer's loss, and removes it from gradients.

    Attributes:
      optimizer: the LossScaleOptimizer that the user set, or None.
    """

    def __init__(self, keras: Keras) -> None:
        self.optimizer: LossScaler = None
        self._keras = keras
        self._none_scales = False  # whether the user set the optimizer to None

    def name(self, optimizer: LossScaler) -> None:
        """Set the optimizer that scales the loss; None means that the loss is not scaled.

        Raises:
          ConfigError (ValueError): it is not a LossScaleOptimizer.
        """
        if optimizer is not None and not isinstance(optimizer, self._keras.loss_scaler):
            raise ConfigError(f"`loss_scale_optimizer` is {type(optimizer)}: it must be a Keras LossScaleOptimizer.")
        self.optimizer = optimizer
        self._none_scales = optimizer is None

    def unscaled(self, gradients: Gradients, layer: str, compute_dtype: str) -> Gradients:
        """Return the gradients of the unscaled loss; zeros if any is not finite, as the optimizer skips such a step.

        Args:
          gradients: gradients of the activations.
          layer: name of the layer, for messages.
          compute_dtype: compute dtype of the activations.

        Raises:
          EngineError (RuntimeError): it is unknown whether the loss is scaled.
        """
        optimizer = self._scaler(layer, compute_dtype)
        if optimizer is None:
            return gradients
        scale = self._keras.scale_of(optimizer)
        unscaled = [gradient / tf.cast(scale, gradient.dtype) for gradient in gradients]
        finite = _everywhere(tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in unscaled]))
        return [tf.where(finite, gradient, tf.zeros_like(gradient)) for gradient in unscaled]

    def _scaler(self, layer: str, compute_dtype: str) -> LossScaler:
        """Return the LossScaleOptimizer that scaled the loss, or None."""
        named, running = self.optimizer, self._keras.running_loss_scaler()
        if named is not None and running is not None and running is not named:
            raise EngineError(
                f"`loss_scale_optimizer` of layer {layer!r} is {named!r}, and gradients are computed by "
                f"{running!r}: set it to the one that the model is trained with."
            )
        if named is not None or running is not None:
            return running if named is None else named
        policies = (compute_dtype, self._keras.package.mixed_precision.global_policy().compute_dtype)
        if self._none_scales or "float16" not in policies:
            return None
        raise EngineError(
            f"Layer {layer!r} trains its tables itself, and its gradients may be those of a scaled loss, as the policy "
            "is 'mixed_float16'. Set the layer's `loss_scale_optimizer` to the loop's LossScaleOptimizer, or to None"
            " if the loss is not scaled. `model.fit` and `minimize` need neither; the policy 'mixed_bfloat16' needs no "
            "LossScaleOptimizer."
        )


def _everywhere(condition: tf.Tensor) -> tf.Tensor:
    """Return whether a condition holds in every replica, as the optimizer skips a step in all replicas or in none."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return condition
    return tf.equal(context.all_reduce("sum", tf.cast(tf.logical_not(condition), tf.float32)), 0.0)


# Finds out from the call stack who calls the layer, because Keras does not pass this on.


def frames() -> Iterator[FrameType]:
    """Yield the frames of the call stack, from the innermost."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def module_of(frame: FrameType) -> str:
    """Return the name of a frame's module."""
    return str(frame.f_globals.get("__name__", ""))


def code_of(method: Any) -> CodeType:
    """Return the code of a method, without its decorators."""
    code: CodeType = inspect.unwrap(method).__code__
    return code
