"""Every input kind, combiner and optimizer on every engine, against the numpy oracle."""

import dataclasses
import functools
import itertools
import random

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import FTRL, SGD, Adagrad, AdagradMomentum, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, TPUEmbeddingV0, simulated_tpu
from embedding_core.testing import Oracle, Samples, build_dense, build_ragged, build_sparse

ROWS, DIM, BATCH, STEPS = 12, 3, 8, 3
RTOL, ATOL = 5e-5, 5e-6  # float32 against float64, after three steps
KINDS = ("dense", "sparse", "ragged", "weighted_sparse", "weighted_ragged", "sparse_sequence", "ragged_sequence")
COMBINERS = ("sum", "mean", "sqrtn")
OPTIMIZERS = {
    "sgd": SGD(learning_rate=0.1),
    "sgd_clip_decay": SGD(learning_rate=0.1, clipvalue=0.3, weight_decay_factor=0.1, clip_weight_max=0.4),
    "sgd_one_by_one": SGD(learning_rate=0.1, use_gradient_accumulation=False, clip_weight_min=-0.2),
    "adagrad": Adagrad(learning_rate=0.1),
    "adagrad_decay": Adagrad(
        learning_rate=0.1, weight_decay_factor=0.5, multiply_weight_decay_factor_by_learning_rate=True
    ),
    "adagrad_one_by_one": Adagrad(learning_rate=0.1, use_gradient_accumulation=False),
    "momentum": AdagradMomentum(learning_rate=0.1, momentum=0.9, exponent=3, epsilon=1e-3),
    "momentum_nesterov": AdagradMomentum(learning_rate=0.1, momentum=0.5, use_nesterov=True, beta2=0.9, epsilon=1e-3),
    "adam": Adam(learning_rate=0.1),
    "adam_outside": Adam(learning_rate=0.1, sum_inside_sqrt=False, epsilon=1e-3),
    "adam_not_lazy": Adam(learning_rate=0.1, lazy_adam=False, clipvalue=(None, 0.5)),
    "ftrl": FTRL(learning_rate=0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.1),
    "ftrl_multiply": FTRL(
        learning_rate=0.1,
        multiply_linear_by_learning_rate=True,
        beta=0.2,
        l1_regularization_strength=0.05,
        learning_rate_power=-0.7,
    ),
    "rate_callable": Adagrad(learning_rate=lambda: tf.constant(0.05)),
}
ENGINES = ("host", "host_graph", "1x2", "2x2", "v0")
TOPOLOGIES = {engine: tuple(map(int, engine.split("x"))) for engine in ENGINES if "x" in engine}
simulated_tpu(hosts=2, cores_per_host=4)  # logical devices, before any test of the process runs TensorFlow


@dataclasses.dataclass(frozen=True)
class Case:
    """One cell of the product."""

    kind: str
    combiner: str
    optimizer: str
    engine: str

    def __str__(self):
        return "-".join(dataclasses.astuple(self))

    @property
    def config(self):
        length = 2 if "sequence" in self.kind else 0
        return EmbeddingConfig(
            tables=(TableConfig(name="t", vocabulary_size=ROWS, dim=DIM, combiner=self.combiner),),
            features=(
                FeatureConfig(name="a", table="t", max_sequence_length=length),
                FeatureConfig(name="b", table="t", max_sequence_length=length),
            ),
        )


def draw(kind, generator):
    """Samples with duplicates, empty examples (the last one too), zero and negative weights."""
    if kind == "dense":
        return Samples([[int(i)] for i in generator.integers(ROWS // 2, size=BATCH)])
    lengths = [*generator.integers(0, 4, size=BATCH - 1), 0]
    ids = [[int(i) for i in generator.integers(ROWS // 2, size=n)] for n in lengths]
    choices = [0.0, 0.5, 1.0, 2.0, -1.5]
    weights = [[float(w) for w in generator.choice(choices, size=n)] for n in lengths]
    return Samples(ids, weights if "weighted" in kind else None)


def batches_of(kind):
    """The batches of every step, the same on every engine."""
    generator = np.random.default_rng(7)
    return [{name: draw(kind, generator) for name in ("a", "b")} for _ in range(STEPS)]


def build(kind, samples, order):
    if kind == "dense":
        return build_dense(samples), None
    if "sparse" in kind:
        return build_sparse(samples, order=order)
    return build_ragged(samples)


def traced(step, *examples):
    """The step as a graph function that takes any number of ids: one trace for all batches."""

    def spec_of(value):
        if isinstance(value, tf.SparseTensor):
            return tf.SparseTensorSpec([value.shape[0], None], value.dtype)
        if isinstance(value, tf.RaggedTensor):
            return tf.RaggedTensorSpec([value.shape[0], None], value.dtype, ragged_rank=1)
        return tf.TensorSpec(value.shape, value.dtype)

    return tf.function(step, input_signature=tf.nest.map_structure(spec_of, list(examples)))


class Host:
    """The host engine as the contract drives it."""

    cores = 1

    def __init__(self, case):
        self._engine = HostEngine(case.config, optimizer=OPTIMIZERS[case.optimizer], seed=3)
        self.eager = case.engine == "host"

    def step(self, ids, weights):
        activations = self._engine.lookup(ids[0], weights[0])
        gradients = {name: 2.0 * value for name, value in activations.items()}
        self._engine.apply_gradients(ids[0], gradients, weights[0])
        return [activations]

    def variables(self):
        return [self._engine.embedding_tables["t"], *self._engine.slots["t"].values()]


class Simulated:
    """The simulated TPU as the contract drives it: every core enqueues its part."""

    eager = False

    def __init__(self, case):
        hosts, cores = TOPOLOGIES[case.engine]
        self.cores = hosts * cores
        self._strategy = simulated_tpu(hosts=hosts, cores_per_host=cores)
        with self._strategy.scope():
            self._embedding = TPUEmbedding(case.config, OPTIMIZERS[case.optimizer], seed=3)
        self._embedding.build(BATCH // self.cores)

    def step(self, ids, weights):
        devices = self._strategy.extended.worker_devices
        for part, weight, device in zip(ids, weights, devices, strict=True):
            full = {name: weight.get(name) for name in part}
            self._embedding.enqueue(part, full if weight else None, device=device)

        def on_core():
            activations = self._embedding.dequeue()
            self._embedding.apply_gradients(tf.nest.map_structure(lambda value: 2.0 * value, activations))
            return activations

        found = self._strategy.run(on_core)
        local = {name: self._strategy.experimental_local_results(value) for name, value in found.items()}
        return [{name: value[core] for name, value in local.items()} for core in range(self.cores)]

    def variables(self):
        return list(self._embedding._engine.variables["t"].values())


class Replicated:
    """Whole tables on every simulated core, trained by a Keras optimizer."""

    cores, eager = 2, False

    def __init__(self, case):
        self._strategy = simulated_tpu(hosts=1, cores_per_host=2, embedding_feature="V0")
        with self._strategy.scope():
            self._embedding = TPUEmbeddingV0(case.config, OPTIMIZERS[case.optimizer], seed=3)
            self._optimizer = tf.keras.optimizers.legacy.SGD(0.1)
        self._embedding.build()

    def variables(self):
        return list(self._embedding.embedding_tables.values())

    def step(self, ids, weights):
        def on_core():
            core = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            full = {name: weights[core].get(name) for name in ids[core]}
            with tf.GradientTape() as tape:
                activations = self._embedding(ids[core], full)
                loss = tf.add_n([tf.reduce_sum(tf.square(value)) for value in activations.values()])
            variables = self.variables()
            self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return activations

        found = self._strategy.run(on_core)
        local = {name: self._strategy.experimental_local_results(value) for name, value in found.items()}
        return [{name: value[core] for name, value in local.items()} for core in range(self.cores)]


def engine_of(case):
    if case.engine in TOPOLOGIES:
        return Simulated(case)
    return Replicated(case) if case.engine == "v0" else Host(case)


def part_of(samples, core, cores):
    size = BATCH // cores
    rows = slice(core * size, (core + 1) * size)
    return Samples(samples.ids[rows], None if samples.weights is None else samples.weights[rows])


def parts_of(batch, cores):
    return [{name: part_of(samples, core, cores) for name, samples in batch.items()} for core in range(cores)]


@functools.cache
def run(case):
    """Number of cores, first rows, activations of every step by core, and tables and slots at the end."""
    order = None if "one_by_one" in case.optimizer else np.random.default_rng(8)  # else the result is the order's
    engine = engine_of(case)
    first, activations = engine.variables()[0].numpy(), []
    step = engine.step if engine.eager else None
    for batch in batches_of(case.kind):
        built = [
            {name: build(case.kind, samples, order) for name, samples in part.items()}
            for part in parts_of(batch, engine.cores)
        ]
        ids = [{name: value for name, (value, _) in part.items()} for part in built]
        weights = [{name: w for name, (_, w) in part.items() if w is not None} for part in built]
        step = step or traced(engine.step, ids, weights)
        found = step(ids, weights)
        activations.append([{name: value.numpy() for name, value in part.items()} for part in found])
    return engine.cores, first, activations, [variable.numpy() for variable in engine.variables()]


def check(case):
    """Activations of every step, and tables and slots at the end, are the oracle's."""
    cores, first, activations, variables = run(case)
    oracle = Oracle(case.config, {"t": first}, OPTIMIZERS[case.optimizer])
    for batch, found in zip(batches_of(case.kind), activations, strict=True):
        parts = parts_of(batch, cores)
        expected = [oracle.lookup(part) for part in parts]
        gradients = [{name: 2.0 * value for name, value in part.items()} for part in expected]
        oracle.apply_gradients_of_cores(list(zip(parts, gradients, strict=True)))
        for one, other in zip(found, expected, strict=True):
            for name, value in other.items():
                np.testing.assert_allclose(one[name], value, rtol=RTOL, atol=ATOL)
    for one, other in zip(variables, [oracle.tables["t"], *oracle.slots["t"]], strict=True):
        np.testing.assert_allclose(one, other, rtol=RTOL, atol=ATOL)


def check_engines(case):
    """Activations, tables and slots of an engine are those of the host engine."""
    _, _, own, variables = run(case)
    _, _, of_host, host_variables = run(dataclasses.replace(case, engine="host"))
    for one, other in zip(own, of_host, strict=True):
        for name in ("a", "b"):
            np.testing.assert_allclose(
                np.concatenate([part[name] for part in one]), other[0][name], rtol=RTOL, atol=ATOL
            )
    for one, other in zip(variables, host_variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=RTOL, atol=ATOL)


PRODUCT = [
    Case(*cell)
    for cell in itertools.product(KINDS, COMBINERS, OPTIMIZERS, ENGINES)
    if cell[3] != "v0" or cell[2] == "sgd"  # the one optimizer that is the same in Keras
]
BY_KIND = [case for case in PRODUCT if case.optimizer == "sgd"]
BY_OPTIMIZER = [
    case for case in PRODUCT if case.kind == "weighted_ragged" and case.combiner == "mean" and case.optimizer != "sgd"
]
SAMPLE = random.Random(0).sample([case for case in PRODUCT if case not in BY_KIND + BY_OPTIMIZER], 40)
REST = [case for case in PRODUCT if case not in BY_KIND + BY_OPTIMIZER + SAMPLE]


def others(cases):
    """The cases of engines other than the host, where the result does not hang on the order of the cores."""
    return [case for case in cases if case.engine != "host" and "one_by_one" not in case.optimizer]


@pytest.mark.parametrize("case", BY_KIND, ids=str)
def test_kind_and_combiner_agree_with_the_oracle(case):
    check(case)


@pytest.mark.parametrize("case", BY_OPTIMIZER, ids=str)
def test_optimizer_agrees_with_the_oracle(case):
    check(case)


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_sample_of_the_product_agrees_with_the_oracle(case):
    check(case)


@pytest.mark.parametrize("case", others(BY_KIND + BY_OPTIMIZER), ids=str)
def test_engine_agrees_with_the_host_engine(case):
    check_engines(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=str)
def test_rest_of_the_product_agrees_with_the_oracle(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", others(SAMPLE + REST), ids=str)
def test_rest_of_the_engines_agrees_with_the_host_engine(case):
    check_engines(case)


def test_the_product_is_whole():
    assert len(PRODUCT) == len(KINDS) * len(COMBINERS) * (len(OPTIMIZERS) * (len(ENGINES) - 1) + 1)
    assert sorted(map(str, BY_KIND + BY_OPTIMIZER + SAMPLE + REST)) == sorted(map(str, PRODUCT))
