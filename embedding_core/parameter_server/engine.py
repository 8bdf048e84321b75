"""Holds tables on parameter servers, partitioned by row; workers look rows up and update them by the TPU's rules."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.engines import HostEngine
from embedding_core.engines.engine import Engine, Lookup
from embedding_core.engines.host import RowGradients, look_up_forms, normal_forms
from embedding_core.engines.table_updates import accumulated, apply_to_table
from embedding_core.engines.tables import ITERATIONS, PARAMETERS, initial_rows, is_schedule, step_rates, unmirrored
from embedding_core.errors import EngineError
from embedding_core.feature_specs import AnyTable, FeatureSpec, Ids, Weights
from embedding_core.layer.layer_configs import LayerConfig
from embedding_core.optimizers import Optimizer
from embedding_core.translate import Model, TableSpec
from embedding_core.update_rules import Rate

_SMALLEST_BLOCK = 256  # rows of a server's part; a table with less than that for each server stays whole
_partitioned: contextvars.ContextVar[bool] = contextvars.ContextVar("partitioned", default=False)


class RowPartitioner:
    """Partitions tables over the servers by row, and nothing else; for `ParameterServerStrategy`."""

    def __init__(self, servers: int) -> None:
        """Partition over that number of servers."""
        self.servers = servers

    def __call__(self, shape: tf.TensorShape, dtype: tf.DType) -> list[int]:
        """Return the number of parts of each axis."""
        return [self.servers if _partitioned.get() else 1, *[1] * (shape.rank - 1)]


@contextlib.contextmanager
def _partitioning() -> Iterator[None]:
    token = _partitioned.set(True)
    try:
        yield
    finally:
        _partitioned.reset(token)


class _Part:
    """The rows of one table that one server holds, with their slots and the lock of their updates."""

    def __init__(self, first: int, parameters: tf.Variable, slots: Sequence[tf.Variable]) -> None:
        self.first, self.count = first, int(parameters.shape[0])
        self.parameters, self.slots = parameters, slots
        self.device = parameters.device
        with tf.device(self.device):  # locks of one name on a server are one lock
            self._lock = tf.CriticalSection(name="update", shared_name=f"update/{uuid.uuid4()}")

    def holds(self, ids: tf.Tensor) -> tf.Tensor:
        """Return whether each id is of this part, bool [N]."""
        return (ids >= self.first) & (ids < self.first + self.count)

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Read rows by their ids in the table."""
        with tf.device(self.device):
            return tf.gather(self.parameters, ids - self.first)

    def update(self, optimizer: Optimizer, ids: tf.Tensor, gradients: tf.Tensor, rate: Rate) -> None:
        """Apply one update on the server; updates of several workers are applied one after the other."""

        def apply() -> tf.Tensor:
            apply_to_table(optimizer, self.parameters, self.slots, ids - self.first, gradients, rate)
            return tf.constant(True)

        with tf.device(self.device):
            self._lock.execute(apply)


class ServerTables(HostEngine):
    """Tables on the servers of a `tf.distribute.ParameterServerStrategy`, for a step that a worker runs.

    Part k of a table is a block of consecutive rows on server k. A worker fetches each row of its batch once, and
    adds up the gradients of each row before it sends them. The server applies the update rules of `HostEngine` to rows
    and slots, with a lock for each part. So no update is lost or mixed with another one, but it may have been
    computed from rows that other workers have changed since.

    Attributes:
      tables: as of `HostEngine`; a partitioned table is saved as slices of one tensor under the table's key.
    """

    def __init__(self, model: Model, seed: int, strategy: tf.distribute.Strategy) -> None:
        """Prepare tables on the servers of the strategy in force; `build` creates them."""
        super().__init__(model, seed=seed)
        self._strategy = strategy
        self._parts: dict[str, list[_Part]] = {}

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the variables on the servers; shapes are not needed."""
        if self._parts:
            return
        servers = tasks_of("ps")
        with tf.init_scope():
            if any(table.optimizer and is_schedule(table.optimizer.learning_rate) for table in self.model.tables):
                self._iterations = _on_server(0, lambda: tf.Variable(0, trainable=False, dtype=tf.int64))
                self.tables._add(ITERATIONS, self._iterations)
            for number, table in enumerate(self.model.tables):
                self._create(table, number, servers)

    def _create(self, table: TableSpec, number: int, servers: int) -> None:
        optimizer = table.optimizer
        initial = {PARAMETERS: 0.0} | {
            slot.name: float(slot.initial) for slot in (optimizer.slots if optimizer else ())
        }
        made = {
            name: _new_variable(self._strategy, table, name, value, number, servers) for name, value in initial.items()
        }
        for name, variable in made.items():
            self.tables._add(table.name if name == PARAMETERS else f"{table.name}/{name}", variable)
        blocks = [_blocks(variable) for variable in made.values()]
        parts, first = [], 0
        for parameters, *slots in zip(*blocks, strict=True):
            parts.append(_Part(first, parameters, slots))
            first += parts[-1].count
        self._parts[table.name] = parts
        _fill(table, parts, self._seed)

    @property
    def table_variables(self) -> dict[str, tf.Variable]:
        """Empty: the rows are on the servers. See `table_blocks`."""
        return {}

    @property
    def table_blocks(self) -> dict[str, list[tf.Variable]]:
        """The parts of each table and slot, in the order of the rows, by `<table>` and `<table>/<slot>`."""
        found: dict[str, list[tf.Variable]] = {}
        for table in self.model.tables:
            parts = self._parts.get(table.name, [])
            found[table.name] = [part.parameters for part in parts]
            for at, slot in enumerate(table.optimizer.slots if table.optimizer else ()):
                found[f"{table.name}/{slot.name}"] = [part.slots[at] for part in parts]
        return found

    @property
    def embedding_tables(self) -> dict[str, tf.Variable]:
        """Empty, as `table_variables`."""
        return {}

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """See `Engine`.

        Raises:
          EngineError (RuntimeError): always: no process holds the tables.
        """
        raise EngineError(
            "the tables are on parameter servers and cannot be read here: save a checkpoint, create the layer outside "
            "of the strategy, and restore."
        )

    def _look_up(self, features: Sequence[FeatureSpec], values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        parameters = {name: parts[0].parameters for name, parts in self._parts.items()}
        forms = normal_forms(features, parameters, values, weights, checked=True)

        def activations() -> list[tf.Tensor]:
            rows: dict[str, tf.Tensor] = {}
            local = list(forms)
            for table in dict.fromkeys(feature.table for feature in features):
                of_table = [at for at, feature in enumerate(features) if feature.table == table]
                ids = [tf.cast(forms[at].ids, tf.int64) for at in of_table]
                unique, places = tf.unique(tf.concat(ids, 0))
                rows[table] = _fetched(self._parts[table], unique)
                parts = tf.split(places, [tf.size(id_) for id_ in ids], num=len(ids))
                for at, part in zip(of_table, parts, strict=True):
                    local[at] = dataclasses.replace(forms[at], ids=part)
            return look_up_forms(features, rows, local, values)

        return Lookup(activations, lambda gradients: self._train(features, forms, gradients))

    def _apply(self, replicas: Sequence[RowGradients]) -> None:
        (gradients,) = replicas
        optimizers = [cast(Optimizer, table.optimizer) for table in self.model.tables]
        rates = step_rates(optimizers, self._iterations)
        for table, optimizer, rate in zip(self.model.tables, optimizers, rates, strict=True):
            if table.name in gradients:
                self._update(table.name, optimizer, *gradients[table.name], rate)
        if self._iterations is not None:
            self._iterations.assign_add(1)

    def _update(self, table: str, optimizer: Optimizer, ids: tf.Tensor, gradients: tf.Tensor, rate: Rate) -> None:
        if optimizer.use_gradient_accumulation:
            ids, gradients = accumulated(ids, gradients)
        ids = tf.cast(ids, tf.int64)
        for part in self._parts[table]:
            mine = part.holds(ids)
            part.update(optimizer, tf.boolean_mask(ids, mine), tf.boolean_mask(gradients, mine), rate)


def new_engine(strategy: tf.distribute.Strategy, config: LayerConfig, arguments: Mapping[str, Any]) -> Engine | None:
    """Return the engine for parameter servers; None under another strategy, or if Keras trains the tables."""
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy) or arguments["table_update"] != "engine":
        return None
    return ServerTables(config.model, arguments["seed"], strategy)


def tasks_of(job: str) -> int:
    """Count the tasks of a job, such as "ps" or "worker", in the cluster that this process is connected to."""
    devices = (tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices("CPU"))
    return len({device.task for device in devices if device.job == job})


def _on_server(number: int, make: Callable[[], tf.Variable]) -> tf.Variable:
    """Create a variable on one server, as no strategy's variable."""

    def on_device() -> tf.Variable:
        with tf.device(f"/job:ps/replica:0/task:{number}/device:CPU:0"):
            return make()

    return unmirrored(on_device)


def _new_variable(
    strategy: tf.distribute.Strategy, table: TableSpec, name: str, value: float, number: int, servers: int
) -> Any:
    """Create a table or slot, filled with one value: partitioned over all servers, or whole on one of them."""
    full = table.name if name == PARAMETERS else f"{table.name}/{name}"

    def initial(partition_shape: Sequence[int] = (table.rows, table.dim), **_: Any) -> tf.Tensor:
        return tf.fill(list(partition_shape), tf.constant(value, tf.float32))

    if servers == 1 or table.rows < servers * _SMALLEST_BLOCK:
        return _on_server(number % servers, lambda: tf.Variable(initial(), trainable=False, name=full))
    with strategy.scope(), _partitioning():
        return tf.Variable(
            initial, shape=[table.rows, table.dim], dtype=tf.float32, trainable=False, name=full.replace("/", "_")
        )


def _blocks(variable: Any) -> list[tf.Variable]:
    """Return the parts of a partitioned variable, or the variable."""
    return list(getattr(variable, "variables", [variable]))


def _fill(table: TableSpec, parts: Sequence[_Part], seed: int) -> None:
    """Write the initial rows. Each server computes its own; an initializer of another kind runs in this process."""
    initializer: Any = table.initializer
    if not isinstance(initializer, InitializerConfig):
        rows = initializer((table.rows, table.dim), dtype=tf.float32)
        for part in parts:
            part.parameters.assign(rows[part.first : part.first + part.count])
        return
    for part in parts:
        with tf.device(part.device):
            _fill_part(
                part, lambda block: initial_rows(initializer, seed=seed, table=table.name, dim=table.dim, block=block)
            )


def _fill_part(part: _Part, rows_of: Callable[[int], tf.Tensor]) -> None:
    """Write the rows of a part; `rows_of` returns one block of the table's rows, and all blocks have the same size."""
    size = rows_of(0).shape[0]
    end = part.first + part.count
    for start in range(part.first // size * size, end, size):
        low, high = max(part.first, start), min(end, start + size)
        indices = tf.range(low - part.first, high - part.first, dtype=tf.int64)
        part.parameters.scatter_update(tf.IndexedSlices(rows_of(start // size)[low - start : high - start], indices))


def _fetched(parts: Sequence[_Part], ids: tf.Tensor) -> tf.Tensor:
    """Read rows of a table from all its servers: [N, dim] in the order of the distinct ids, int64 [N]."""
    if len(parts) == 1:
        return parts[0].rows(ids)
    masks = [part.holds(ids) for part in parts]
    places = [tf.cast(tf.where(mask)[:, 0], tf.int32) for mask in masks]
    rows = [part.rows(tf.boolean_mask(ids, mask)) for part, mask in zip(parts, masks, strict=True)]
    fetched = tf.dynamic_stitch(places, rows)
    return tf.ensure_shape(fetched, [None, rows[0].shape[-1]])
