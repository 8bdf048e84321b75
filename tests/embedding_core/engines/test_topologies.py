"""Random models on random topologies: tables, slots and activations do not depend on hosts and cores."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedding_core import FTRL, SGD, Adagrad, AdagradMomentum, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from tests.embedding_core.oracle import Samples
from tests.support.engine_steps import Simulated, built, traced

BATCH = 8
KINDS = ["dense", "sparse", "ragged", "weighted_sparse", "weighted_ragged"]
TOPOLOGIES = [(1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (4, 2)]  # hosts and cores per host; each against 1 x 1
OPTIMIZERS = [
    SGD(learning_rate=0.1, clipvalue=0.5),
    Adagrad(learning_rate=0.1, weight_decay_factor=0.01),
    AdagradMomentum(learning_rate=0.1, momentum=0.9, epsilon=1e-3),
    Adam(learning_rate=0.1, epsilon=1e-3),
    FTRL(learning_rate=0.1, beta=0.5),
]


@st.composite
def models(draw):
    tables = tuple(
        TableConfig(
            name=f"t{place}",
            vocabulary_size=draw(st.integers(1, 12)),
            dim=draw(st.integers(1, 5)),
            combiner=draw(st.sampled_from(["sum", "mean", "sqrtn"])),
            optimizer=draw(st.sampled_from(OPTIMIZERS)),
        )
        for place in range(draw(st.integers(1, 4)))
    )
    count = draw(st.integers(len(tables), 6))
    kinds = [draw(st.sampled_from(KINDS)) for _ in range(count)]
    features = tuple(
        FeatureConfig(
            name=f"f{place}",
            table=tables[place % len(tables)].name,
            max_sequence_length=draw(st.sampled_from([0, 2])) if kind in ("sparse", "ragged") else 0,
        )
        for place, kind in enumerate(kinds)
    )
    kinds = {feature.name: kind for feature, kind in zip(features, kinds, strict=True)}
    return EmbeddingConfig(tables=tables, features=features), kinds


def samples_of(config, kinds, seed):
    generator = np.random.default_rng(seed)
    found = {}
    for feature in config.features:
        kind = kinds[feature.name]
        rows = config.table(feature.table).vocabulary_size
        lengths = np.ones(BATCH, int) if kind == "dense" else generator.integers(0, 4, BATCH)
        ids = [generator.integers(0, rows, n).tolist() for n in lengths]
        weights = [generator.choice([0.0, 0.5, 1.0, -2.0], n).tolist() for n in lengths]
        found[feature.name] = Samples(ids, weights if kind.startswith("weighted") else None)
    return found


def trained(config, kinds, topology, steps=2):
    """Train; return the activations of every step in the order of the global batch, then all variables."""
    driver = Simulated(config, None, topology, BATCH, scale=0.5)
    found, step = [], None
    for seed in range(steps):
        ids, weights = built(kinds, samples_of(config, kinds, seed), driver.cores)
        step = step or traced(driver.step, ids, weights)
        parts = step(ids, weights)
        found += [tf.concat([part[name] for part in parts], 0) for name in kinds]
    return [value.numpy() for value in found + driver.variables()]


def check(model, topology):
    gc.collect()
    config, kinds = model
    for first, other in zip(trained(config, kinds, (1, 1)), trained(config, kinds, topology), strict=True):
        np.testing.assert_allclose(first, other, rtol=2e-4, atol=2e-5)


@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from(TOPOLOGIES))
def test_random_model_is_the_same_on_every_topology(model, topology):
    check(model, topology)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from(TOPOLOGIES))
def test_many_random_models_are_the_same_on_every_topology(model, topology):
    check(model, topology)
