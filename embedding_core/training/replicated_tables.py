"""Trains tables on a TPU without an embedding engine (V0): every core holds all rows, Keras' optimizers update them."""

from __future__ import annotations

import tf_keras

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import SGD
from embedding_core.training.learning_rate_decay import LinearDecay, scheduled
from embedding_core.translate import kind_of_optimizer


def keras_optimizers(config: EmbeddingConfig, decay: LinearDecay | None) -> dict[str, tf_keras.optimizers.Optimizer]:
    """Make the Keras optimizer of each table, by name; its rate follows the decay, if there is one.

    These are not the TPU's update rules: Keras' Adagrad adds an epsilon. Its Adam adds epsilon outside the root,
    corrects the bias of its moments, and updates rows that were not looked up.

    Raises:
      ConfigError: a table has no optimizer, Keras does not have it, or would ignore a hyperparameter that is set.
    """
    return {table.name: _namesake(table, decay) for table in config.tables}


def _namesake(table: TableConfig, decay: LinearDecay | None) -> tf_keras.optimizers.Optimizer:
    optimizer = table.optimizer
    if optimizer is None:
        raise ConfigError(f"table {table.name!r} has no `optimizer`: give it one, such as {SGD()!r}.")
    kind = kind_of_optimizer(optimizer)
    if kind.keras is None:
        raise ConfigError(
            f"`optimizer` of table {table.name!r} is {type(optimizer).__name__}: a TPU without an embedding engine "
            "(V0) trains tables with Keras' optimizers, which have no namesake of it; choose SGD, Adagrad, Adam or "
            "FTRL."
        )
    for key in optimizer.hyperparameters():
        value, default = getattr(optimizer, key), type(optimizer).model_fields[key].default
        if key not in (*kind.passed, "learning_rate") and value != default:
            raise ConfigError(
                f"`{key}` of table {table.name!r} is {value!r}: a TPU without an embedding engine (V0) trains "
                f"tables with Keras' {kind.keras}, which would ignore it; leave it out."
            )
    values = {name: getattr(optimizer, name) for name in kind.passed}
    rate = scheduled(optimizer.learning_rate, decay)
    return getattr(tf_keras.optimizers, kind.keras)(learning_rate=rate, **values)


def config_without_slots(config: EmbeddingConfig) -> EmbeddingConfig:
    """Give every table SGD, which has no slots: the engine does not train here, so slots would be saved unused."""
    tables = (table.replace(optimizer=SGD()) for table in config.tables)
    return config.replace(tables=tuple(tables))
