"""Defines `TPUEmbedding` for Keras 3, on its TensorFlow backend; needs neither tf_keras nor an environment variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.engines.engine import Engine, Lookup
from embedding_core.engines.host import look_up_forms, normal_forms
from embedding_core.engines.tables import Tables, all_rows
from embedding_core.errors import ConfigError, DataError, EngineError
from embedding_core.feature_specs import AnyTable, FeatureConfigs, Ids, Weights
from embedding_core.layer.keras_files import saved_variables
from embedding_core.layer.keras_package import Keras, LossScaler, code_of, frames, module_of
from embedding_core.layer.keras_rs_configs import as_ragged, with_tensorflow_configs
from embedding_core.layer.table_layer import TableLayer, in_scratch_graph
from embedding_core.structures import Nested
from embedding_core.tracing import as_written
from embedding_core.translate import OPTIMIZERS, GivenOptimizer, Model, OptimizerKind, TableSpec

if keras.backend.backend() != "tensorflow":
    raise ConfigError(
        f"the backend of Keras is {keras.backend.backend()!r}: the tables need TensorFlow's; set "
        "KERAS_BACKEND=tensorflow before Keras is imported."
    )

_STEP = code_of(keras.Model.train_step)
# In exports, Keras 3.15 also calls subclassed models with float32 in this function, and drops the result.
_GUESS = ("keras.src.backend.tensorflow.layer", "tf__serving_default")
_LISTS = {code_of(keras.layers.Layer.get_weights), code_of(keras.layers.Layer.set_weights)}


class _Keras3(Keras):
    """Keras 3 on TensorFlow."""

    name = "keras"
    package = keras
    kinds: Mapping[type, OptimizerKind] = {
        getattr(keras.optimizers, kind.keras): kind for kind in OPTIMIZERS if kind.keras
    }
    loss_scaler = keras.optimizers.LossScaleOptimizer

    def is_optimizer(self, optimizer: GivenOptimizer) -> bool:
        return isinstance(optimizer, keras.optimizers.Optimizer)

    def rate_of(self, optimizer: GivenOptimizer, config: Mapping[str, Any]) -> Callable[[], tf.Tensor]:
        return lambda: tf.convert_to_tensor(optimizer.learning_rate)  # of this step, also if it is a schedule

    def running_loss_scaler(self) -> LossScaler:
        """Return the optimizer in whose `train_step` gradients are computed now if it scales the loss; else None."""
        for frame in frames():
            if frame.f_code is _STEP:
                optimizer = frame.f_locals["self"].optimizer
                scales = isinstance(optimizer, self.loss_scaler) or optimizer.loss_scale_factor is not None
                return optimizer if scales else None
        return None

    def scale_of(self, scaler: LossScaler) -> Any:
        if not isinstance(scaler, self.loss_scaler):
            return scaler.loss_scale_factor
        return scaler.dynamic_scale if scaler.built else scaler.initial_scale


KERAS_3 = _Keras3()


def translate_keras_optimizer(optimizer: GivenOptimizer) -> GivenOptimizer:
    """Translate SGD, Adagrad, Adam or Ftrl of Keras 3 to its namesake in `tf.tpu.experimental.embedding`.

    Raises:
      ConfigError (ValueError): another class, or a hyperparameter that the TPU's optimizers do not have.
    """
    return KERAS_3.translate(optimizer)


class TrainableTables(Engine):
    """Tables as trainable weights of a layer, which the optimizer of its model updates."""

    trains_itself = False

    def __init__(self, model: Model, seed: int, add_weight: Callable[..., Any]):
        self.tables = Tables()
        self._model = model
        self._seed = seed
        self._add_weight = add_weight
        self._weights: dict[str, Any] = {}

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the weights; shapes are not needed."""
        if not self._weights:
            _once(self._create)

    def _create(self) -> None:
        for table in self._model.tables:
            weight = self._add_weight(
                name=table.name.replace("/", "_"),
                shape=(table.rows, table.dim),
                initializer=_first_rows(table, self._seed),
                dtype="float32",
                autocast=False,
            )
            self._weights[table.name] = weight
            self.tables._add(table.name, weight)

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """See `Engine`."""
        features = self._model.features
        tables = {name: weight.value for name, weight in self._weights.items()}
        forms = normal_forms(features, tables, values, weights)
        return Lookup(lambda: look_up_forms(features, tables, forms, values), None)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """Return the tables by the caller's TableConfig; create them if needed."""
        self.build()
        return {table.key: self._weights[table.name].value for table in self._model.tables}


def _first_rows(table: TableSpec, seed: int) -> Callable[..., tf.Tensor]:
    initializer: Any = table.initializer
    if not isinstance(initializer, InitializerConfig):
        return lambda shape, dtype=None: tf.convert_to_tensor(initializer(tuple(shape), dtype=tf.float32))
    return lambda shape, dtype=None: all_rows(initializer, seed=seed, table=table.name, rows=table.rows, dim=table.dim)


@keras.saving.register_keras_serializable("tfx_embeddings")
class TPUEmbedding(TableLayer, keras.layers.Layer):
    """Looks up and combines rows of embedding tables in models of Keras 3.

    Does what `embedding_core.layer.TPUEmbedding` does for tf_keras, with the same arguments, and reads its checkpoints
    (`tf.train.Checkpoint`) and writes such. What differs:

    * Optimizers and initializers are those of Keras 3, and the table is a `keras.Variable` if `table_update` is
      "keras". The slots of Keras 3's optimizers are never those of a TPU's tables.
    * `weights` contains the tables and slots that the layer trains itself, and `trainable_variables` does not.
    * With `LossScaleOptimizer` or `loss_scale_factor`, only `fit` with Keras' own `train_step` knows the scale by
      itself.
    * Build a model before its checkpoint is restored: tables of "keras" that a subclassed model makes later, as its
      first weights, keep their initial rows, as weights of Keras' own layers do.
    * FeatureConfig and TableConfig of keras-rs are accepted, and dense ids [B, n], whose rows are combined.
    * XLA does not compile models with this layer (`supports_jit` is False): it would not refuse ids outside a table.
    """

    keras = KERAS_3

    def __init__(self, feature_config: Any, optimizer: GivenOptimizer = None, *arguments: Any, **named: Any):
        super().__init__(with_tensorflow_configs(feature_config), optimizer, *arguments, **named)
        self.supports_jit = False
        engine = self._state.engine
        if not engine.trains_itself and not isinstance(engine, TrainableTables):
            raise ConfigError(
                "the TPU has no embedding engine, or `embedding_feature` is UNSUPPORTED: whole tables on every core of "
                "a TPU are for tf_keras; use `embedding_core.layer.TPUEmbedding`."
            )

    def _new_tables(self, model: Model, seed: int) -> Engine:
        return TrainableTables(model, seed, self.add_weight)

    def _helper(self) -> tf.Variable:
        return self._state.helper.value

    @as_written
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `call`."""
        inputs = tf.nest.flatten([args, kwargs])
        state = self._state
        before = state.symbolic
        state.symbolic = in_scratch_graph() or any(isinstance(value, keras.KerasTensor) for value in inputs)
        state.kinds_known = False  # Keras 3 replaces ragged ids, and in `fit` sparse ones, by dense placeholders
        if in_scratch_graph():
            args, kwargs = _with_integers(args, kwargs)
        try:
            if not self.built:  # by Keras, weights of which some are None would fail
                features = args[0] if args else kwargs["features"]
                self.build(tf.nest.map_structure(_shape_of, features))
            return super().__call__(*args, **kwargs)
        finally:
            state.symbolic = before

    def build(self, input_shape: Nested = None) -> None:
        """Create the variables.

        Args:
          input_shape: the per-replica shapes of the inputs, in the structure of `feature_config`, or None.
        """
        engine = self._build_engine(input_shape)
        if engine.trains_itself:
            _once(self._add_helper)
        self.built = True

    def _add_helper(self) -> None:
        self._state.helper = self.add_weight(
            name="virtual_variable", shape=(1,), initializer="zeros", dtype="float32", autocast=False
        )

    def call(self, features: Nested, weights: Nested = None, serving_config: FeatureConfigs = None) -> Nested:
        """Look up and combine; see the layer of tf_keras. Dense ids may also be [B, n], whose n rows are combined."""
        if not self._state.symbolic:
            features, weights = as_ragged(features), as_ragged(weights)
        callers = [] if tf.executing_eagerly() else list(frames())
        exporting = any(module_of(frame).startswith("keras.src.export") for frame in callers)
        if exporting and any((module_of(frame), frame.f_code.co_name) == _GUESS for frame in callers):
            features = tf.nest.map_structure(lambda ids: tf.cast(ids, tf.int64), features)
        try:
            return super().call(features, weights, serving_config)
        except DataError as error:
            if exporting:
                error.args = (f"{error} Without `input_signature`, `export` gives float32 to subclassed models.",)
            elif any(tf.as_dtype(getattr(ids, "dtype", tf.int64)).is_floating for ids in tf.nest.flatten(features)):
                error.args = (f"{error} `keras.Input`, also that of a Sequential, is float32: give it dtype='int64'.",)
            raise

    @property
    def weights(self) -> list[Any]:  # type: ignore[override]
        """The layer's weights, and the tables and slots that it trains itself: get_weights and EarlyStopping copy them.

        Raises:
          EngineError (RuntimeError): they are to be copied and are in a real TPU's memory or on parameter servers.
        """
        weights: list[Any] = super().weights
        engine = self._state.engine
        if not engine.trains_itself or not self.built:
            return weights
        variables = saved_variables(engine)
        if not variables and any(frame.f_code in _LISTS for frame in frames()):  # training asks for `weights` too
            raise EngineError(
                f"The tables of layer {self.name!r} are in a TPU's memory or on parameter servers: get_weights, "
                "set_weights and EarlyStopping with restore_best_weights cannot copy them. Save and restore with "
                "tf.train.Checkpoint."
            )
        for key, variable in variables.items():
            variable.path = f"{self.name}/{key}"  # Keras' callbacks name weights by it
        return [*weights, *variables.values()]


def _once(create: Callable[[], None]) -> None:
    """Create variables outside of the graph that is traced, and once for all replicas if this is one of several."""

    def outside(strategy: Any = None) -> None:
        with tf.init_scope():
            create()

    context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    if context is None:
        outside()
    else:
        context.merge_call(outside)


def _with_integers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Cast placeholders of ids that are float32, by which `load_model` builds subclassed models; no ids are there."""

    def cast(ids: Any) -> Any:
        kinds = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)
        return tf.cast(ids, tf.int64) if isinstance(ids, kinds) and ids.dtype.is_floating else ids

    if args:
        return (tf.nest.map_structure(cast, args[0]), *args[1:]), kwargs
    return args, {**kwargs, "features": tf.nest.map_structure(cast, kwargs["features"])}


def _shape_of(value: Any) -> tuple[int | None, ...] | None:
    shape = getattr(value, "shape", None)
    rank = getattr(shape, "rank", None if shape is None else len(shape))
    return None if shape is None or rank is None else tuple(shape)
