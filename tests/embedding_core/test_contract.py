"""Every input kind, combiner and optimizer on every engine, against the numpy oracle.

Updates are compared, not values: next to a value of 0.3, a lost update of 1e-4 looks like a rounding error.
"""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import (
    FTRL,
    SGD,
    Adagrad,
    AdagradMomentum,
    Adam,
    EmbeddingConfig,
    FeatureConfig,
    TableConfig,
    layer,
)
from embedding_core.engines import HostEngine, TPUEmbeddingV0, batches, simulated_tpu, table_updates
from embedding_core.feature_specs import ignored_by
from embedding_core.layer import keras3
from embedding_core.lookup import combine_in_order, combine_weighted, weight_divisors
from embedding_core.rooms import is_installed
from embedding_core.serving import lookups
from embedding_core.translate import config_to_tensorflow
from tests.embedding_core.oracle import Oracle, Samples, oracle_lookup
from tests.support.engine_steps import Simulated, built, of_each_core, parts_of, this_core, traced

ROWS, DIM, BATCH, STEPS = 12, 3, 8, 3
HOT_BATCH = 4096  # one id then occurs more than 4,096 times in the two features, with tiny gradients
RTOL, ATOL = 5e-5, 5e-6  # for activations, float32 against float64
OF_UPDATE, OF_LARGEST = 1e-3, 2e-5  # tolerances relative to an update, and to the variable's largest update
ROUNDINGS = 4 * float(np.finfo(np.float32).eps)  # tolerance relative to the value: rounding errors of a step
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
SPARSE_CORES = {"v5p": (1, 4), "v6e": (2, 2)} if is_installed("sparse_cores") else {}  # chips, and SparseCores of each
ENGINES = ("host", "layer", "1x2", "2x2", "v0", *SPARSE_CORES, "keras3")
TOPOLOGIES = {engine: tuple(map(int, engine.split("x"))) for engine in ENGINES if "x" in engine}


@dataclasses.dataclass(frozen=True)
class Case:
    """One combination of input kind, combiner, optimizer and engine."""

    kind: str
    combiner: str
    optimizer: str
    engine: str
    hot: bool = False
    tables: tuple = ("t", "t")  # of features a and b

    def __str__(self):
        return "-".join([self.kind, self.combiner, self.optimizer, self.engine, *["hot"] * self.hot])

    @property
    def kinds(self):
        return dict.fromkeys("ab", self.kind)

    @property
    def batch(self):
        return HOT_BATCH if self.hot else BATCH

    @property
    def scale(self):
        """The gradient of an activation, divided by the activation."""
        return 1e-6 if self.hot else 2.0

    @property
    def config(self):
        length = 2 if "sequence" in self.kind else 0
        return EmbeddingConfig(
            tables=tuple(
                TableConfig(name=name, vocabulary_size=ROWS, dim=DIM, combiner=self.combiner)
                for name in dict.fromkeys(self.tables)
            ),
            features=tuple(
                FeatureConfig(name=name, table=table, max_sequence_length=length)
                for name, table in zip("ab", self.tables, strict=True)
            ),
        )


def draw(case, generator):
    """Samples with duplicates, empty examples (the last one too), zero and negative weights."""

    def some(count):
        ids = generator.integers(ROWS // 2, size=count)
        return (ids * (generator.random(count) > 0.6) if case.hot else ids).tolist()

    if case.kind == "dense":
        return Samples([[i] for i in some(case.batch)])
    lengths = [*generator.integers(0, 4, size=case.batch - 1), 0]
    ids = [some(n) for n in lengths]
    choices = [0.0, 0.5, 1.0, 2.0, -1.5]
    weights = [[float(w) for w in generator.choice(choices, size=n)] for n in lengths]
    return Samples(ids, weights if "weighted" in case.kind else None)


@functools.cache
def batches_of(case):
    """The batches of every step, the same on every engine and for every optimizer."""
    if case.engine or case.optimizer:
        return batches_of(dataclasses.replace(case, optimizer="", engine=""))
    generator = np.random.default_rng(7)
    return [{name: draw(case, generator) for name in ("a", "b")} for _ in range(1 if case.hot else STEPS)]


class Host:
    """Runs the host engine eagerly, with the calls that the layer makes."""

    cores, eager = 1, True

    def __init__(self, case):
        self._engine = HostEngine(case.config, optimizer=OPTIMIZERS[case.optimizer], seed=3)
        self._scale = case.scale

    def step(self, ids, weights):
        lookup = self._engine.look_up([ids[0][name] for name in "ab"], [weights[0].get(name) for name in "ab"])
        activations = lookup.activations()
        lookup.update([self._scale * value for value in activations])
        return [dict(zip("ab", activations, strict=True))]

    def variables(self):
        return list(self._engine.table_variables.values())


class Layer:
    """Runs the host engine through a Keras layer, inside tf.function, as users train with it."""

    cores, eager = 1, False

    def __init__(self, case, kind=layer.TPUEmbedding):
        self._layer = kind(case.config, OPTIMIZERS[case.optimizer], table_update="engine", seed=3)
        self._layer.build(None)
        self._scale = case.scale

    def step(self, ids, weights):
        full = {name: weights[0].get(name) for name in ids[0]}
        with tf.GradientTape() as tape:
            activations = self._layer(ids[0], full)
            loss = tf.add_n([self._scale / 2 * tf.reduce_sum(tf.square(value)) for value in activations.values()])
        tape.gradient(loss, self._layer.trainable_variables)
        return [activations]

    def variables(self):
        return list(self._layer.table_variables.values())


class Keras3(Layer):
    """Runs the layer of Keras 3."""

    def __init__(self, case):
        super().__init__(case, keras3.TPUEmbedding)


class Replicated:
    """Runs simulated cores with a whole copy of the tables each, trained by a Keras optimizer."""

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
            core = this_core()
            full = {name: weights[core].get(name) for name in ids[core]}
            with tf.GradientTape() as tape:
                activations = self._embedding(ids[core], full)
                loss = tf.add_n([tf.reduce_sum(tf.square(value)) for value in activations.values()])
            variables = self.variables()
            self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return activations

        return of_each_core(self._strategy, self._strategy.run(on_core))


class SparseCores:
    """Runs the simulated SparseCores; each chip gets its part of the batch."""

    eager = False

    def __init__(self, case):
        from embedding_core.sparse_cores import SparseCoreEmbeddingConfig
        from embedding_core.sparse_cores.tpu_embedding import TPUEmbeddingV2

        self.cores, sparse_cores = SPARSE_CORES[case.engine]
        self._strategy = simulated_tpu(cores_per_host=self.cores, embedding_feature="V2", sparse_cores=sparse_cores)
        features = config_to_tensorflow(case.config)
        for feature in features.values():
            feature.output_shape = tf.TensorShape([case.batch // self.cores])
        names = ("t", "u", "t_u")
        limits = dict.fromkeys(names, 2 * HOT_BATCH)
        config = SparseCoreEmbeddingConfig(
            max_ids_per_table=limits, max_unique_ids_per_table=limits, max_ids_per_chip_per_sample=2 * HOT_BATCH
        )
        with self._strategy.scope():
            self._embedding = TPUEmbeddingV2(
                features, OPTIMIZERS[case.optimizer], sparse_core_embedding_config=config, seed=3
            )
        self._embedding.build()
        self._scale = case.scale

    def step(self, ids, weights):
        def on_chip():
            chip = this_core()
            full = {name: weights[chip].get(name) for name in ids[chip]}
            activations, preserved = self._embedding(ids[chip], full)
            gradients = tf.nest.map_structure(lambda value: self._scale * value, activations)
            self._embedding.apply_gradients(gradients, preserved)
            return activations

        return of_each_core(self._strategy, self._strategy.run(on_chip))

    def variables(self):
        return list(self._embedding._state.views.values())


def engine_of(case):
    if case.engine in SPARSE_CORES:
        return SparseCores(case)
    if case.engine in TOPOLOGIES:
        return Simulated(case.config, OPTIMIZERS[case.optimizer], TOPOLOGIES[case.engine], case.batch, case.scale)
    return {"host": Host, "layer": Layer, "keras3": Keras3, "v0": Replicated}[case.engine](case)


@functools.cache
def run(case):
    """Return the number of cores, the initial variables, the activations by step and core, and the final variables."""
    order = None if "one_by_one" in case.optimizer else np.random.default_rng(8)  # one by one: the order matters
    engine = engine_of(case)
    first, activations = [variable.numpy() for variable in engine.variables()], []
    step = engine.step if engine.eager else None
    for batch in batches_of(case):
        ids, weights = built(case.kinds, batch, engine.cores, order)
        step = step or traced(engine.step, ids, weights)
        found = step(ids, weights)
        activations.append([{name: value.numpy() for name, value in part.items()} for part in found])
    return engine.cores, first, activations, [variable.numpy() for variable in engine.variables()]


def assert_same_updates(first, found, expected):
    """Check that every element moved as far as expected, but for rounding errors of the update and the value."""
    for start, mine, other in zip(first, found, expected, strict=True):
        before = start.astype(np.float64)
        wanted = other - before
        values = np.maximum(np.abs(before), np.abs(other))
        allowed = OF_UPDATE * np.abs(wanted) + OF_LARGEST * np.abs(wanted).max(initial=0.0) + ROUNDINGS * values
        wrong = np.abs(mine - before - wanted) > allowed
        assert not wrong.any(), f"moved by {(mine - before)[wrong]}, expected {wanted[wrong]}, of {before[wrong]}"


def check(case):
    """Compare the activations of every step, and the updates of tables and slots, with the oracle's."""
    cores, first, activations, variables = run(case)
    oracle = Oracle(case.config, {"t": first[0]}, OPTIMIZERS[case.optimizer])
    for batch, found in zip(batches_of(case), activations, strict=True):
        parts = parts_of(batch, cores)
        expected = [oracle.lookup(part) for part in parts]
        gradients = [{name: case.scale * value for name, value in part.items()} for part in expected]
        oracle.apply_gradients_of_cores(list(zip(parts, gradients, strict=True)))
        for mine, other in zip(found, expected, strict=True):
            for name, value in other.items():
                np.testing.assert_allclose(mine[name], value, rtol=RTOL, atol=ATOL)
    assert_same_updates(first, variables, [oracle.tables["t"], *oracle.slots["t"]])


def check_engines(case):
    """Compare the activations and updates of an engine with those of the host engine."""
    _, first, own, variables = run(case)
    _, _, of_host, host_variables = run(dataclasses.replace(case, engine="host"))
    for mine, other in zip(own, of_host, strict=True):
        for name in ("a", "b"):
            np.testing.assert_allclose(
                np.concatenate([part[name] for part in mine]), other[0][name], rtol=RTOL, atol=ATOL
            )
    assert_same_updates(first, variables, host_variables)


def exists(kind, optimizer, engine):
    """Whether an engine has a kind of input and an optimizer."""
    if engine in SPARSE_CORES:
        rule = OPTIMIZERS[optimizer]
        ignored = ignored_by("V2", type(rule).__name__)
        return "sequence" not in kind and all(
            getattr(rule, name, default) == default for name, (default, _) in ignored.items()
        )
    return engine != "v0" or optimizer == "sgd"  # the one optimizer that is the same in Keras


PRODUCT = [
    Case(*cell)
    for cell in itertools.product(KINDS, COMBINERS, OPTIMIZERS, ENGINES)
    if exists(cell[0], cell[2], cell[3])
]
TWINS = ("1x2", "v6e", "keras3")  # of other engines
# In the sample, engines that share code share the pairs of kind and combiner; the first of each has all optimizers.
THIRDS = {"layer": (1, 2), "keras3": (0,), "2x2": (1, 2), "1x2": (0,), "v5p": (1, 2), "v6e": (0,), "v0": (0,)}


def sample_of(engine):
    """Every kind with every combiner, and in turn every optimizer; each engine pairs them in another way."""
    pairs = [(kind, combiner) for kind, combiner in itertools.product(KINDS, COMBINERS) if exists(kind, "sgd", engine)]
    thirds = THIRDS.get(engine, (0, 1, 2))
    pairs = [pair for pair in pairs if (KINDS.index(pair[0]) + COMBINERS.index(pair[1])) % 3 in thirds]
    optimizers = [name for name in OPTIMIZERS if exists("dense", name, engine)]
    count, first = len(pairs) if engine in TWINS else max(len(pairs), len(optimizers)), 3 * ENGINES.index(engine)
    return [
        Case(*pairs[place % len(pairs)], optimizers[(first + place) % len(optimizers)], engine)
        for place in range(count)
    ]


SAMPLE = [case for engine in ENGINES for case in sample_of(engine)]
REST = [case for case in PRODUCT if case not in SAMPLE]
HOT = [  # not "one_by_one", which makes one update per occurrence, nor "v0", whose Keras SGD does so too
    Case(kind, "mean", *cell, hot=True)
    for kind in ("dense", "weighted_ragged")
    for cell in itertools.product(OPTIMIZERS, ENGINES)
    if "one_by_one" not in cell[0] and cell[1] != "v0" and exists(kind, *cell)
]
HOT_SAMPLE = [  # each way in which accumulated gradients become updates, on each engine that shares no code
    case
    for case in HOT
    if case.kind == "dense"
    and case.optimizer in ("sgd", "adagrad", "adam_not_lazy")
    and case.engine in ("host", "2x2", "v5p")
]


def does_not_follow_order(case):
    """Whether the result on several cores is that of the host: one by one, it depends on the order of the cores."""
    return case.engine != "host" and "one_by_one" not in case.optimizer


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_sample_of_the_product_agrees_with_the_oracle(case):
    check(case)


@pytest.mark.parametrize("case", HOT_SAMPLE, ids=str)
def test_hot_ids_agree_with_the_oracle(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in REST + HOT if case not in HOT_SAMPLE], ids=str)
def test_rest_of_the_product_agrees_with_the_oracle(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in PRODUCT + HOT if does_not_follow_order(case)], ids=str)
def test_engine_agrees_with_the_host_engine(case):
    check_engines(case)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine not in TWINS])
def test_sample_has_every_optimizer(engine):
    optimizers, in_sample = ({case.optimizer for case in cases if case.engine == engine} for cases in (PRODUCT, SAMPLE))
    assert in_sample == optimizers


def test_the_product_is_whole():
    others = len(ENGINES) - len(SPARSE_CORES) - 1
    honoured = [name for name in OPTIMIZERS if exists("dense", name, "v5p")]
    of_sparse_cores = 5 * len(honoured) * len(SPARSE_CORES)  # 5 kinds are not sequences
    assert len(PRODUCT) == len(COMBINERS) * (len(KINDS) * (len(OPTIMIZERS) * others + 1) + of_sparse_cores)


def test_contract_sees_occurrences_that_do_not_accumulate(monkeypatch):
    monkeypatch.setattr(table_updates, "accumulated", lambda ids, gradients: (ids, gradients))
    monkeypatch.setattr(f"{__name__}.run", run.__wrapped__)
    with pytest.raises(AssertionError, match="moved by"):
        check(Case("dense", "mean", "sgd", "host", hot=True))


def rows_of_paths(table, ids, combiner):
    """Yield name and vectors of each implementation that combines rows of ragged ids, the reference first."""
    segments, count, values = ids.value_rowids(), ids.nrows(), ids.values
    ones = tf.ones([tf.size(values)])
    divisors = weight_divisors(combiner, segments, count, ones)
    gathered = tf.gather(table, values)
    yield "definition", combine_weighted(gathered, segments, count, ones, divisors)
    yield "in order", combine_in_order(gathered, segments, count, combiner)
    yield "in order, from the table", combine_in_order(table, segments, count, combiner, places=values)
    rows = lookups.Rows(block=tf.Variable(table), name="block", start=0, count=len(table))
    served, _ = lookups.look_up_lists({"f": lookups.ListedIds(rows=rows, ids=ids, combiner=combiner)})
    yield "served", served["f"]
    empty, sums = tf.zeros([0]), tf.zeros([count]) if divisors is None else divisors
    for form, batch in (
        (1, batches.TableBatch(values, segments, empty, sums, tf.constant(1))),
        (2, batches.TableBatch(values, segments, ones, sums, tf.constant(2))),
    ):
        yield f"engine, form {form}", batches.activations_of(combiner, gathered, batch, int(count))


RAGGED_IDS = {
    "duplicates and empty rows": [[], [1, 1, 3], [], [0], []],
    "no ids": [[], []],
    "no rows": [],
    "a hot id": [[2] * 1000, [2, 5]],
    "last row empty": [[4, 5], []],
}


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("lists", RAGGED_IDS.values(), ids=RAGGED_IDS)
def test_every_path_from_rows_to_a_vector_is_the_definition(lists, combiner):
    table = np.random.default_rng(1).normal(size=(6, DIM)).astype(np.float32)
    ids = tf.ragged.constant(lists, ragged_rank=1, dtype=tf.int64)
    (_, expected), *others = rows_of_paths(table, ids, combiner)
    np.testing.assert_allclose(expected, oracle_lookup(table, Samples(lists), combiner), rtol=2e-4, atol=ATOL)
    for path, found in others:
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=ATOL, err_msg=path)


def test_paths_of_one_id_per_row_are_the_definition():
    table = np.random.default_rng(1).normal(size=(6, DIM)).astype(np.float32)
    ids = tf.constant([5, 0, 0, 2], tf.int64)
    expected = combine_weighted(tf.gather(table, ids), tf.range(4), 4, None, None)
    rows = lookups.Rows(block=tf.Variable(table), name="block", start=0, count=6)
    served, _ = lookups.look_up_single({"f": lookups.SingleIds(rows=rows, ids=ids)}, missing=-1)
    batch = batches.TableBatch(ids, tf.zeros([0], tf.int64), tf.zeros([0]), tf.zeros([0]), tf.constant(0))
    for found in (served["f"], batches.activations_of("mean", tf.gather(table, ids), batch, 4)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine not in TWINS])
def test_non_finite_weight_is_an_error_and_changes_nothing(engine):
    optimizer = {"v0": "sgd"}.get(engine, "adam" if engine in SPARSE_CORES else "adam_not_lazy")
    kind = ("weighted_sparse", "weighted_ragged")[ENGINES.index(engine) % 2]
    case = Case(kind, "mean", optimizer, engine, tables=("t", "u"))
    driver = engine_of(case)
    good = batches_of(case)[0]
    ids, weights = built(case.kinds, good, driver.cores)
    step = driver.step if driver.eager else traced(driver.step, ids, weights)
    step(ids, weights)
    before = [variable.numpy() for variable in driver.variables()]
    for bad in (np.nan, -np.inf):
        spoilt = good | {"b": with_weight(good["b"], bad)}
        with pytest.raises(tf.errors.InvalidArgumentError, match="A weight of feature b is NaN or infinite"):
            step(*built(case.kinds, spoilt, driver.cores))
        for variable, old in zip(driver.variables(), before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), old)


def with_weight(samples, value):
    """Replace the weight of the last id by `value`."""
    weights = [list(row) for row in samples.weights]
    next(row for row in reversed(weights) if row)[-1] = value
    return Samples(samples.ids, weights)
