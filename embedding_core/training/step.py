"""Trains many steps in one call of a tf.function, with losses and falling learning rates, and predicts for evaluations.

The learning rates of the dense part and of the tables may fall during training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
import tf_keras

from embedding_core.checkpoint import Tables
from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.layer import TPUEmbedding
from embedding_core.model_inputs import build_model, call_model, check_two_tower, is_two_tower, tower_vectors
from embedding_core.optimizers import SGD
from embedding_core.schema import Json
from embedding_core.tasks import Task, retrieval_index
from embedding_core.tracing import as_written, calling_user_code
from embedding_core.training.drawn_candidates import CANDIDATE, COMPETES, LOG_Q
from embedding_core.training.training_inputs import Batch, UserFunctions
from embedding_core.training_config import Softmax, TrainingConfig, rate_scales_rows
from embedding_core.translate import kind_of_optimizer

Rate: TypeAlias = float | Callable[..., tf.Tensor]

_CLASSES = {
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamw": "AdamW",
    "ftrl": "Ftrl",
    "nadam": "Nadam",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
}


class LinearDecay:
    """The step of a run that learning rates are computed for: they fall to 0 over the planned steps.

    This is the number of steps done, until `repeat` goes through earlier steps once more. No optimizer's own counter is
    used: after a warm start it does not begin at 0.

    Attributes:
      steps: number of planned steps.
    """

    def __init__(self, step: tf.Variable, steps: int) -> None:
        """Follow `step`, the number of steps done of `steps`; create variables in the scope of the strategy."""
        self.steps = steps
        self._done = step
        self._first = tf.Variable(0.0, trainable=False, name="first_of_rates")
        self._pace = tf.Variable(1.0, trainable=False, name="pace_of_rates")

    def position(self) -> tf.Tensor:
        """Return the step, float32 scalar."""
        return self._first + self._pace * tf.cast(self._done, tf.float32)

    def falling(self, rate: float) -> Callable[[], tf.Tensor]:
        """Make the function that returns what `rate` has fallen to."""
        return lambda: rate * tf.maximum(0.0, 1.0 - self.position() / self.steps)

    def repeat(self, last: int, number: int, times: int) -> None:
        """Let the next `times` steps have, together, the mean rate of the `number` steps that end after `last` steps.

        The rates fall as they did then. With as many steps as `number`, each has the rate that it had then.
        """
        pace = number / times
        self._pace.assign(pace)
        self._first.assign(last - number + (pace - 1) / 2 - pace * last)


class _OfRun(tf_keras.optimizers.schedules.PolynomialDecay):
    """Decays a rate of a Keras optimizer by the steps of a run."""

    def __init__(self, rate: float, decay: LinearDecay) -> None:
        super().__init__(rate, decay_steps=decay.steps, end_learning_rate=0.0)
        self._decay = decay

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return super().__call__(self._decay.position())


def dense_optimizer(training: TrainingConfig, decay: LinearDecay | None) -> tf_keras.optimizers.Optimizer:
    """Make the Keras optimizer of the dense part.

    Args:
      training: settings with the optimizer's name and rate.
      decay: the decay of the rate; None keeps it.

    Raises:
      ConfigError: the rate of FTRL would fall.
    """
    if decay is not None and training.dense_optimizer.name == "ftrl":
        raise ConfigError(
            "`dense_optimizer` is 'ftrl', and `decay` is 'linear': its weights would fall to 0 with its rate; choose "
            "another optimizer, or leave out `decay`."
        )
    rate = scheduled(training.dense_optimizer.learning_rate, decay)
    return getattr(tf_keras.optimizers, _CLASSES[training.dense_optimizer.name])(learning_rate=rate)


def scheduled(rate: Rate, decay: LinearDecay | None) -> Rate:
    """Make a learning rate for a Keras optimizer: a number follows the decay, if there is one; a function is kept."""
    return rate if decay is None or callable(rate) else _OfRun(rate, decay)


def config_with_decay(config: EmbeddingConfig, decay: LinearDecay) -> EmbeddingConfig:
    """Let the rate of every table's optimizer follow the decay; a rate that is a function is kept.

    Raises:
      ConfigError: rows would fall to 0 with the rate.
    """
    optimizers = {table.name: table.optimizer for table in config.tables if table.optimizer is not None}
    for name, optimizer in optimizers.items():
        if rate_scales_rows(optimizer) and not callable(optimizer.learning_rate):
            raise ConfigError(
                f"`optimizer` of table {name!r} is {optimizer.name!r}, and `decay` is 'linear': its rows would fall to "
                "0 with its rate; set its `multiply_linear_by_learning_rate`, or leave out `decay`."
            )
    starts = {optimizer.learning_rate for optimizer in optimizers.values()}
    rates = {start: start if callable(start) else decay.falling(start) for start in starts}
    falling = {
        name: optimizer.replace(learning_rate=rates[optimizer.learning_rate]) for name, optimizer in optimizers.items()
    }
    return config.replace(tables=tuple(table.replace(optimizer=falling.get(table.name)) for table in config.tables))


# Trains tables on a TPU without an embedding engine (V0): every core holds all rows, Keras' optimizers update them.


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


# Computes the loss of retrieval as a softmax over the candidates of a batch.

_NOT_A_CANDIDATE = -1e30  # logit of a candidate that is left out; with an infinity, gradients would be NaN


class Candidates(NamedTuple):
    """The candidates of a global batch.

    Attributes:
      vectors: float32 [C, n].
      ids: int32 [C], the table's row of each candidate.
      log_q: float32 [C], the logarithm of how often the candidate is expected in a batch (logQ).
      is_negative: bool [C], whether the candidate is a negative for other queries; false for padding.
    """

    vectors: tf.Tensor
    ids: tf.Tensor
    log_q: tf.Tensor
    is_negative: tf.Tensor


def softmax_losses(
    queries: tf.Tensor,
    own: tf.Tensor,
    candidates: Candidates,
    *,
    temperature: float = 1.0,
    remove_hits: bool = True,
    hard_negatives: int | None = None,
) -> tf.Tensor:
    """Compute the softmax cross-entropy of each query, with its own candidate as the label.

    The logits are ``q . c / temperature - log_q``. Frequent candidates are negatives more often: without the correction
    by logQ, they would be ranked too low (Bengio and Senecal, 2008; Yi et al., 2019).

    Args:
      queries: float32 [Q, n].
      own: int32 [Q], position of each query's candidate.
      candidates: the candidates.
      temperature: divisor of the products.
      remove_hits: whether to leave out accidental hits: other candidates with the same id as the query's own.
      hard_negatives: number of negatives that count for each query, largest logits first; None for all.

    Returns:
      float32 [Q].
    """
    logits = tf.matmul(queries, candidates.vectors, transpose_b=True) / temperature - candidates.log_q
    # `==` of tensors compares objects in the graph that preflight traces
    is_own = tf.equal(tf.range(tf.shape(candidates.ids)[0])[tf.newaxis], own[:, tf.newaxis])
    is_negative = candidates.is_negative[tf.newaxis] & ~is_own
    if remove_hits:
        is_negative &= tf.not_equal(candidates.ids[tf.newaxis], tf.gather(candidates.ids, own)[:, tf.newaxis])
    of_own = tf.reduce_sum(tf.where(is_own, logits, tf.zeros_like(logits)), 1)
    negatives = tf.where(is_negative, logits, tf.fill(tf.shape(logits), tf.constant(_NOT_A_CANDIDATE, logits.dtype)))
    if hard_negatives is not None:
        negatives = tf.math.top_k(negatives, tf.minimum(hard_negatives, tf.shape(negatives)[1])).values
    return tf.reduce_logsumexp(tf.concat([of_own[:, tf.newaxis], negatives], 1), 1) - of_own


# Trains many steps in one call of a tf.function, and predicts for evaluations.


class StepsDone(NamedTuple):
    """Losses and counts of some training steps.

    Attributes:
      losses: float32 [steps].
      rows: number of rows trained on, int64.
      positives: number of rows whose label is above 0.5, int64 [tasks].
      finite: bool [dense features + tasks + 1]: whether each dense feature, label and the weight was always finite;
        a missing label (NaN) counts as finite if there are several tasks.
    """

    losses: tf.Tensor
    rows: tf.Tensor
    positives: tf.Tensor
    finite: tf.Tensor


class Scores(NamedTuple):
    """The model's outputs with labels and weights, of all replicas in order.

    Outputs are float32 [B, widths of the tasks], labels [B, tasks], and weights [B, 1].
    `softmax_loss` is the loss of each row by the softmax over candidates, [B, 1]; 0 if training has no softmax.
    """

    output: tf.Tensor
    label: tf.Tensor
    weight: tf.Tensor
    softmax_loss: tf.Tensor


def _weighted_loss(
    task: Task, label: tf.Tensor, losses: tf.Tensor, weight: tf.Tensor, class_weights: tuple[float, float]
) -> tf.Tensor:
    """Multiply the loss of each row, float32 [B, 1], by the weights of the row, the task and (if binary) the class."""
    losses *= weight
    if not task.is_binary:
        return losses * task.weight
    negative, positive = class_weights
    return losses * tf.where(label > 0.5, positive, negative) * task.weight


def _infinite(batch: Batch, tasks: Sequence[Task]) -> tf.Tensor:
    """Count the values of each column that are not finite, int32; with several tasks, a NaN label is not counted."""
    values = [*batch["dense"].values(), batch["label"], batch["weight"]]
    if len(tasks) > 1:
        values[-2] = tf.where(tf.math.is_nan(values[-2]), 0.0, values[-2])
    return tf.math.count_nonzero(~tf.math.is_finite(tf.concat(values, 1)), 0, dtype=tf.int32)


def _numbers(batch: Batch) -> dict[str, tf.Tensor]:
    """Return the dense features and the lengths of sequences by name."""
    return {**batch["dense"], **batch.get("lengths", {})}


def _gathered(replica: tf.distribute.ReplicaContext, part: tf.Tensor) -> tf.Tensor:
    """Concatenate the parts of all replicas, in their order."""
    if part.dtype == tf.bool:
        return tf.cast(replica.all_gather(tf.cast(part, tf.int32), 0), tf.bool)
    return replica.all_gather(part, 0)


class Trainable:
    """The layer of tables, the dense model and its optimizer, with the functions that train and apply them.

    Make it in the scope of a strategy. The replicas share each batch: a loss is the mean over the rows of all replicas.
    """

    def __init__(
        self,
        embedding: TPUEmbedding,
        model: tf_keras.Model,
        optimizer: tf_keras.optimizers.Optimizer,
        config: TrainingConfig,
        tasks: Sequence[Task],
        step: tf.Variable,
        table_optimizers: Mapping[str, tf_keras.optimizers.Optimizer],
        hosts: int,
        functions: UserFunctions,
        decay: LinearDecay | None = None,
    ) -> None:
        """Create all variables, so that a restore finds them.

        Args:
          embedding: layer with the tables.
          model: the dense part.
          optimizer: optimizer of the dense part.
          config: settings of the training.
          tasks: what the model is trained for.
          step: counter of the steps done.
          table_optimizers: Keras optimizer of each table by name, if the layer does not train them itself.
          hosts: number of hosts if each reads its own rows (`rows` of a batch then counts those of one host); else 1.
          functions: loss and metrics of the model's module, if it has them.
          decay: decay of the learning rates; None if they are constant.
        """
        self.embedding = embedding
        self.model = model
        self.optimizer = optimizer
        self.step = step
        self.tasks = tuple(tasks)
        self.functions = functions
        self.decay = decay
        self._config = config
        self._hosts = hosts
        self._strategy = tf.distribute.get_strategy()
        embedding.build(None)
        embedding.loss_scale_optimizer = None  # the loss of a step is not scaled, whatever policy the model sets
        optimizer.build(model.trainable_variables)
        self.table_optimizers = dict(table_optimizers)
        for name, table_optimizer in self.table_optimizers.items():
            table_optimizer.build([self._table(name)])

    parallel = 1
    """Number of workers that train at the same time, on steps of their own."""
    seconds_per_call = 1.0
    """Rough duration of one call of `run`; SIGTERM is noticed between calls."""

    @property
    def by_softmax(self) -> int | None:
        """The position of the task that a softmax over candidates trains; None without a softmax."""
        return retrieval_index(self.tasks) if self._config.softmax is not None else None

    @property
    def tables(self) -> Tables:
        """The tables and slots."""
        return Tables(self.embedding.table_variables, self.embedding.table_holder, self.embedding.table_blocks)

    def nonfinite_rows(self) -> dict[str, int]:
        """Count the rows that hold a NaN or an infinity; none is found in the memory of a TPU's embedding engine."""
        if not self.table_optimizers:
            return self.tables.nonfinite_rows()
        return Tables({name: self._table(name) for name in self.table_optimizers}, None).nonfinite_rows()

    def _table(self, name: str) -> tf.Variable:
        return next(table for key, table in self.embedding.embedding_tables.items() if key.name == name)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def run(self, batches: Iterator[Batch], steps: tf.Tensor, dense: tf.Tensor) -> StepsDone:
        """Train on the next batches.

        Args:
          batches: iterator over `Batch` (per-replica values if there are several replicas), with `steps` or more left.
          steps: int32 scalar, number of batches.
          dense: int32 scalar, number of dense features.
        """
        replicas = self._strategy.num_replicas_in_sync
        losses = tf.TensorArray(tf.float32, size=steps)
        rows, positives = tf.constant(0, tf.int64), tf.zeros([len(self.tasks)], tf.int64)
        infinite = tf.zeros([dense + len(self.tasks) + 1], tf.int32)
        for index in tf.range(steps):
            parts = self._strategy.run(calling_user_code(self.train_replica), args=(next(batches),))
            sums = [self._strategy.reduce(tf.distribute.ReduceOp.SUM, part, axis=None) for part in parts]
            losses = losses.write(index, sums[0])
            rows += sums[1] // replicas
            positives += sums[2]
            infinite += sums[3]
            self.step.assign_add(1)
        return StepsDone(losses.stack(), rows, positives, tf.equal(infinite, 0))

    def train_replica(self, batch: Batch) -> tuple[tf.Tensor, ...]:
        """Run one replica's part of a step.

        Returns:
          The replica's part of the mean loss of the batch, the number of rows of the global batch, the replica's number
          of positives of each task, and its number of NaN or infinite values by column.
        """
        batch = self._with_all_rows(batch)
        with tf.GradientTape() as tape:
            activations = self.embedding(batch["ids"])
            loss = self._loss(batch, activations)
            penalties = tf.add_n(self.model.losses or [0.0]) / self._strategy.num_replicas_in_sync
            minimized = loss * batch.get("share", 1.0) + penalties  # each row of an epoch has the same weight
        variables = self.model.trainable_variables
        tables = [self._table(name) for name in self.table_optimizers] or self.embedding.trainable_variables
        # A layer that trains its own tables updates them in this call.
        for_model, for_tables = tape.gradient(minimized, (variables, tables))
        if variables:
            as_written(self.optimizer.apply_gradients)(list(zip(for_model, variables, strict=True)))
        for optimizer, gradient, table in zip(self.table_optimizers.values(), for_tables, tables, strict=False):
            as_written(optimizer.apply_gradients)([(gradient, table)])
        positives = tf.math.count_nonzero(batch["label"] > 0.5, 0)
        return loss + penalties, tf.cast(batch["rows"], tf.int64), positives, _infinite(batch, self.tasks)

    def _with_all_rows(self, batch: Batch) -> Batch:
        """Replace `rows` and `share`, which are those of this replica's host, by those of the global batch."""
        if self._hosts == 1:
            return batch
        replica = tf.distribute.get_replica_context()
        counts = tf.stack([tf.cast(batch["rows"], tf.float32) * self._hosts, batch.get("share", 1.0)])
        rows, share = tf.unstack(replica.all_reduce(tf.distribute.ReduceOp.SUM, counts) / replica.num_replicas_in_sync)
        return {**batch, "rows": rows, "share": share}

    def _loss(self, batch: Batch, activations: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Compute this replica's part of the mean loss of all rows, summed over the tasks."""
        count = tf.cast(batch["rows"], tf.float32)
        loss = tf.reduce_sum(self._row_losses(batch, activations)) / count
        if self._config.embedding_l2:
            squares = tf.add_n([tf.reduce_sum(tf.square(activation)) for activation in activations.values()])
            loss += self._config.embedding_l2 * squares / count
        return loss

    def _row_losses(self, batch: Batch, activations: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Compute the weighted loss of each row, float32 [B, 1]."""
        by_row = [at for at in range(len(self.tasks)) if at != self.by_softmax]
        losses = []
        if self._config.softmax is not None:
            retrieval = self._softmax_losses(batch, activations, self._config.softmax, training=True)
            losses.append(retrieval * batch["weight"] * self.tasks[retrieval_index(self.tasks)].weight)
        if by_row:
            outputs = call_model(self.model, activations, _numbers(batch), self.tasks, training=True)
        for at in by_row:
            task, label = self.tasks[at], batch["label"][:, at : at + 1]
            of_rows = self.functions.row_losses(task, label, outputs[task.name])
            losses.append(_weighted_loss(task, label, of_rows, batch["weight"], self._config.class_weights))
        return tf.add_n(losses)

    def _softmax_losses(
        self, batch: Batch, activations: Mapping[str, tf.Tensor], softmax: Softmax, *, training: bool
    ) -> tf.Tensor:
        """Compute each positive row's loss against the candidates of all replicas, float32 [B, 1]; 0 for other rows."""
        queries, vectors = tower_vectors(self.model, {**_numbers(batch), **activations}, training=training)
        has_candidate = (batch["weight"][:, 0] > 0) & (batch["softmax"][CANDIDATE][:, 0] >= 0)
        is_query = (batch["label"][:, retrieval_index(self.tasks)] > 0.5) & has_candidate
        own = tf.range(tf.shape(vectors)[0])
        candidates = Candidates(
            vectors,
            batch["softmax"][CANDIDATE][:, 0],
            batch["softmax"][LOG_Q][:, 0],
            has_candidate & (batch["softmax"][COMPETES][:, 0] > 0),
        )
        replica = tf.distribute.get_replica_context()
        if replica.num_replicas_in_sync > 1:
            own += tf.shape(vectors)[0] * replica.replica_id_in_sync_group
            candidates = Candidates(*(_gathered(replica, part) for part in candidates))
        losses = softmax_losses(
            queries,
            own,
            candidates,
            temperature=softmax.temperature or 1.0,  # never 0
            remove_hits=softmax.remove_hits,
            hard_negatives=softmax.hard_negatives,
        )
        return tf.where(is_query, losses, tf.zeros_like(losses))[:, tf.newaxis]

    def scores(self, batches: Iterable[Batch]) -> list[Scores]:
        """Return the outputs of all batches, in their order."""
        return [self.predict(batch) for batch in batches]

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def predict(self, batch: Batch) -> Scores:
        """Return the outputs of a batch, with its labels and weights."""
        parts = self._strategy.run(calling_user_code(self._scores), args=(batch,))
        return Scores(*(tf.concat(self._strategy.experimental_local_results(part), 0) for part in parts))

    def _scores(self, batch: Batch) -> tuple[tf.Tensor, ...]:
        activations = self.embedding(batch["ids"])
        outputs = call_model(self.model, activations, _numbers(batch), self.tasks)
        softmax, loss = self._config.softmax, tf.zeros_like(batch["weight"])
        if softmax is not None:
            loss = self._softmax_losses(batch, activations, softmax, training=False)
        return tf.concat([outputs[task.name] for task in self.tasks], 1), batch["label"], batch["weight"], loss


def _check_candidate(softmax: Softmax | None, model: tf_keras.Model) -> None:
    """Refuse to draw candidates that lack a feature that the candidate tower reads."""
    if softmax is None or not softmax.sampled or not is_two_tower(model):
        return
    missing = [name for name in model.candidate_features if name not in (softmax.feature, *softmax.other_features)]
    if missing:
        raise ConfigError(
            f"the candidate tower reads {missing[0]!r}, which a drawn candidate would not have: name it in "
            "`softmax.candidate_features`, or set `softmax.sampled` to 0."
        )


def new_trainable(
    config: EmbeddingConfig,
    training: TrainingConfig,
    *,
    model: str,
    dense: Sequence[str],
    arguments: Json,
    tasks: Sequence[Task],
    rows: int,
    steps: int,
    replicated: bool,
    hosts: int = 1,
    engine_arguments: Mapping[str, Any] | None = None,
    kind: type[Trainable] = Trainable,
) -> Trainable:
    """Make the layer, the model and the optimizers; call this in the scope of a strategy.

    Args:
      config: tables and features.
      training: optimizers, rates and weights of the loss.
      model: dotted name of the module with the function `build`.
      dense: names of the dense features.
      arguments: arguments of `build`.
      tasks: what the model is trained for.
      rows: number of rows of one replica's batch.
      steps: number of steps of the run, over which learning rates decay.
      replicated: whether every core of the TPU holds whole tables, which Keras' optimizers train.
      hosts: see `Trainable`.
      engine_arguments: as in `TrainingJob`.
      kind: class to make.

    Raises:
      ConfigError: a function of the module has wrong arguments, the module has a `row_loss` and training a softmax, or
        the model's towers do not fit the softmax.
    """
    step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
    decay = LinearDecay(step, steps) if training.decay == "linear" else None
    moving = config if decay is None else config_with_decay(config, decay)
    embedding = TPUEmbedding(
        config_without_slots(config) if replicated else moving,
        None,
        batch_size=rows,
        table_update="engine",
        seed=training.seed,
        name="embedding",
        **(engine_arguments or {}),
    )
    built = build_model(model, config, dense, arguments, tasks)
    if training.softmax is not None:
        check_two_tower(built, model)
    for_tables = keras_optimizers(config, decay) if replicated else {}
    optimizer = dense_optimizer(training, decay)
    _check_candidate(training.softmax, built)
    functions = UserFunctions(model)
    if training.softmax is not None and functions.has_row_loss:
        raise ConfigError(
            f"module {model!r} has a `row_loss`, and `training.softmax` is given, which is the loss: leave one of them "
            "out."
        )
    return kind(embedding, built, optimizer, training, tasks, step, for_tables, hosts, functions, decay)
