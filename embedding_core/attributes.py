"""Declares for each attribute of TensorFlow's embedding configurations whether it is honoured or refused.

An attribute that is refused must have its default. This also applies to attributes that are not declared here, because
a newer TensorFlow added them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from embedding_core.errors import ConfigError

Trainer: TypeAlias = Literal["engine", "V0", "V2"]

_V0 = "cores without an embedding engine (V0) are trained by a Keras optimizer, which would ignore it"
_V2 = "TensorFlow ignores it on this TPU (SparseCore, V2)"
_ENGINE = "an engine that trains the table makes the slots itself; a checkpoint may give them other values"


@dataclasses.dataclass(frozen=True)
class Attribute:
    """How one attribute is treated.

    Attributes:
      honoured: where its value takes effect, in words; "" if nowhere, so that every value but the default is refused.
      default: its default, which is never refused.
      ignored: by trainer, why the trainer would ignore any other value, which is therefore refused.
    """

    honoured: str
    default: Any = None
    ignored: Mapping[Trainer, str] = dataclasses.field(default_factory=dict)


_RULE = "the update rule of the optimizer"
_BY_BOTH: Mapping[Trainer, str] = {"V0": _V0, "V2": _V2}
_ALL_OPTIMIZERS = {
    "learning_rate": Attribute(_RULE),
    "use_gradient_accumulation": Attribute(_RULE, True, _BY_BOTH),
    "clip_weight_min": Attribute(_RULE, None, _BY_BOTH),
    "clip_weight_max": Attribute(_RULE, None, _BY_BOTH),
    "weight_decay_factor": Attribute(_RULE, None, _BY_BOTH),
    "multiply_weight_decay_factor_by_learning_rate": Attribute(f"{_RULE}; refused without weight_decay_factor"),
    "clipvalue": Attribute(_RULE, None, _BY_BOTH),
    "low_dimensional_packing_status": Attribute("a real TPU; refused if it would change numbers", False, {"V2": _V2}),
}
_WITH_SLOTS = _ALL_OPTIMIZERS | {
    "slot_variable_creation_fn": Attribute(
        "tables that a Keras optimizer trains, or nobody", None, {"engine": _ENGINE, "V2": _V2}
    ),
}
ATTRIBUTES: Mapping[str, Mapping[str, Attribute]] = {
    "FeatureConfig": {
        "table": Attribute("every lookup"),
        "max_sequence_length": Attribute("every lookup"),
        "validate_weights_and_indices": Attribute("every lookup: both values check ids and keep the batch", True),
        "output_shape": Attribute("every lookup"),
        "name": Attribute("the configuration of a real TPU; here a feature is named by its path"),
    },
    "TableConfig": {
        "vocabulary_size": Attribute("variables and lookups"),
        "dim": Attribute("variables and lookups"),
        "initializer": Attribute("first rows"),
        "optimizer": Attribute("training"),
        "combiner": Attribute("every lookup"),
        "name": Attribute("checkpoint keys"),
        "quantization_config": Attribute("every lookup"),
        "layout": Attribute(""),
    },
    "QuantizationConfig": {name: Attribute("every lookup") for name in ("num_buckets", "lower", "upper")},
    "SGD": _ALL_OPTIMIZERS,
    "Adagrad": _WITH_SLOTS | {"initial_accumulator_value": Attribute("first slots")},
    "AdagradMomentum": _WITH_SLOTS
    | {name: Attribute(_RULE) for name in ("momentum", "use_nesterov", "exponent", "beta2", "epsilon")},
    "Adam": _WITH_SLOTS
    | {name: Attribute(_RULE) for name in ("beta_1", "beta_2", "epsilon", "sum_inside_sqrt")}
    | {"lazy_adam": Attribute(_RULE, True, {"V2": _V2})},
    "FTRL": _WITH_SLOTS
    | {
        name: Attribute(_RULE)
        for name in (
            "learning_rate_power",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "beta",
            "multiply_linear_by_learning_rate",
            "allow_zero_accumulator",
        )
    }
    | {"initial_accumulator_value": Attribute("first slots")},
}


def ignored_by(trainer: Trainer, kind: str) -> dict[str, tuple[Any, str]]:
    """Return the attributes of a kind of optimizer that a trainer would ignore, each with its default and a reason."""
    attributes = ATTRIBUTES.get(kind, {})
    return {
        name: (attribute.default, attribute.ignored[trainer])
        for name, attribute in attributes.items()
        if trainer in attribute.ignored
    }


def refuse_unknown(kind: str, given: object, owner: str) -> None:
    """Refuse an object of TensorFlow that sets an attribute which takes effect nowhere.

    Args:
      kind: name of its class in TensorFlow, a key of `ATTRIBUTES`.
      given: the object.
      owner: what the object belongs to, for the message.

    Raises:
      ConfigError (ValueError): an attribute that takes effect nowhere is not at its default.
    """
    declared = ATTRIBUTES[kind]
    nowhere = {name: attribute.default for name, attribute in declared.items() if not attribute.honoured}
    cls: Any = type(given)
    newer = {name: default for name, default in _parameters(cls).items() if name not in declared}
    for name, default in (nowhere | newer).items():
        value = getattr(given, name, default)
        if value is not default and value != default:
            raise ConfigError(
                f"`{name}` of the {kind} of {owner} is {value!r}: it would be ignored here; leave it {default!r}."
            )


@functools.cache
def _parameters(cls: Any) -> dict[str, Any]:
    """Return the named arguments of a class, and their defaults."""
    parameters = inspect.signature(cls).parameters.values()
    return {each.name: each.default for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}
