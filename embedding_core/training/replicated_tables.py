"""Trains tables on a TPU without an embedding engine (V0): every core holds all rows, Keras' optimizers update them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tf_keras

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import FTRL, SGD, Adagrad, Adam, Optimizer
from embedding_core.training.config import TrainingConfig
from embedding_core.training.learning_rate_decay import scheduled

# Keras' namesake of each optimizer, and which of its hyperparameters have the same name there.
_NAMESAKES: Mapping[type, tuple[str, tuple[str, ...]]] = {
    SGD: ("SGD", ()),
    Adagrad: ("Adagrad", ("initial_accumulator_value",)),
    Adam: ("Adam", ("beta_1", "beta_2", "epsilon")),
    FTRL: (
        "Ftrl",
        (
            "learning_rate_power",
            "initial_accumulator_value",
            "beta",
            "l1_regularization_strength",
            "l2_regularization_strength",
        ),
    ),
}


def keras_optimizers(
    config: EmbeddingConfig, training: TrainingConfig, steps: int
) -> dict[str, tf_keras.optimizers.Optimizer]:
    """Make the Keras optimizer of each table, by name; its rate follows the training's `decay`.

    These are not the TPU's update rules: Keras' Adagrad and Adam add an epsilon, and its Adam corrects the bias of
    its moments and updates rows that were not looked up.

    Raises:
      ConfigError: a table's optimizer has no namesake in Keras, or a hyperparameter that Keras would ignore.
    """
    default = Adagrad(learning_rate=training.learning_rate_tables)
    return {table.name: _namesake(table, table.optimizer or default, training, steps) for table in config.tables}


def _namesake(
    table: TableConfig, optimizer: Optimizer, training: TrainingConfig, steps: int
) -> tf_keras.optimizers.Optimizer:
    if type(optimizer) not in _NAMESAKES:
        raise ConfigError(
            f"`optimizer` of table {table.name!r} is {type(optimizer).__name__}: a TPU without an embedding engine "
            "(V0) trains tables with Keras' optimizers, which have no namesake of it; choose SGD, Adagrad, Adam or "
            "FTRL."
        )
    name, shared = _NAMESAKES[type(optimizer)]
    for field in dataclasses.fields(optimizer):
        value = getattr(optimizer, field.name)
        if field.name not in (*shared, "learning_rate") and value != field.default:
            raise ConfigError(
                f"`{field.name}` of table {table.name!r} is {value!r}: a TPU without an embedding engine (V0) trains "
                f"tables with Keras' {name}, which would ignore it; leave it out."
            )
    rate = scheduled(optimizer.learning_rate, training, steps)
    return getattr(tf_keras.optimizers, name)(learning_rate=rate, **{key: getattr(optimizer, key) for key in shared})


def config_without_slots(config: EmbeddingConfig) -> EmbeddingConfig:
    """Give every table SGD, which has no slots: the engine does not train here, so slots would be saved unused."""
    tables = (dataclasses.replace(table, optimizer=SGD()) for table in config.tables)
    return dataclasses.replace(config, tables=tuple(tables))
