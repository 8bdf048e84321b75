"""Every input kind, combiner and optimizer on every engine, against the numpy oracle."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import FTRL, SGD, Adagrad, AdagradMomentum, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.testing import Oracle, Samples, build_dense, build_ragged, build_sparse

ROWS, DIM, BATCH, STEPS = 12, 3, 8, 3
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
ENGINES = ("host", "host_graph")


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


def build(kind, samples, order):
    if kind == "dense":
        return build_dense(samples), None
    if "sparse" in kind:
        return build_sparse(samples, order=order)
    return build_ragged(samples)


def step_of(engine, graph):
    """One training step: the loss is the sum of squared activations, so gradients depend on the tables."""

    def step(ids, weights):
        activations = engine.lookup(ids, weights)
        engine.apply_gradients(ids, {name: 2.0 * value for name, value in activations.items()}, weights)
        return activations

    return tf.function(step, reduce_retracing=True) if graph else step


def run(case):
    """Activations of every step, tables and slots at the end: of the engine, and of the oracle."""
    generator = np.random.default_rng(7)
    order = None if "one_by_one" in case.optimizer else generator  # one by one: the order of the ids is the result's
    engine = HostEngine(case.config, optimizer=OPTIMIZERS[case.optimizer], seed=3)
    oracle = Oracle(case.config, {k: v.numpy() for k, v in engine.embedding_tables.items()}, OPTIMIZERS[case.optimizer])
    step = step_of(engine, case.engine == "host_graph")
    for _ in range(STEPS):
        batch = {name: draw(case.kind, generator) for name in ("a", "b")}
        built = {name: build(case.kind, samples, order) for name, samples in batch.items()}
        weights = {name: weight for name, (_, weight) in built.items() if weight is not None}
        found = step({name: ids for name, (ids, _) in built.items()}, weights)
        expected = oracle.lookup(batch)
        oracle.apply_gradients(batch, {name: 2.0 * value for name, value in expected.items()})
        for name, value in expected.items():
            np.testing.assert_allclose(found[name].numpy(), value, rtol=2e-4, atol=2e-5)
    return engine, oracle


def check(case):
    engine, oracle = run(case)
    np.testing.assert_allclose(engine.embedding_tables["t"].numpy(), oracle.tables["t"], rtol=2e-4, atol=2e-5)
    for slot, expected in zip(engine.slots["t"].values(), oracle.slots["t"], strict=True):
        np.testing.assert_allclose(slot.numpy(), expected, rtol=2e-4, atol=2e-5)


PRODUCT = [Case(*cell) for cell in itertools.product(KINDS, COMBINERS, OPTIMIZERS, ENGINES)]
BY_KIND = [case for case in PRODUCT if case.optimizer == "sgd"]
BY_OPTIMIZER = [case for case in PRODUCT if case.kind == "weighted_ragged" and case.combiner == "mean"]
SAMPLE = random.Random(0).sample([case for case in PRODUCT if case not in BY_KIND + BY_OPTIMIZER], 40)
REST = [case for case in PRODUCT if case not in BY_KIND + BY_OPTIMIZER + SAMPLE]


@pytest.mark.parametrize("case", BY_KIND, ids=str)
def test_kind_and_combiner_agree_with_the_oracle(case):
    check(case)


@pytest.mark.parametrize("case", BY_OPTIMIZER, ids=str)
def test_optimizer_agrees_with_the_oracle(case):
    check(case)


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_sample_of_the_product_agrees_with_the_oracle(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=str)
def test_rest_of_the_product_agrees_with_the_oracle(case):
    check(case)
