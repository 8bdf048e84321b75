"""Random models on random topologies: tables, slots and activations do not depend on hosts and cores."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedding_core import FTRL, SGD, Adagrad, AdagradMomentum, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import TPUEmbedding, simulated_tpu
from embedding_core.testing import Samples, build_dense, build_ragged, build_sparse

simulated_tpu(hosts=2, cores_per_host=4)  # logical devices, before any test of the process runs TensorFlow

BATCH = 8
TOPOLOGIES = [(1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (4, 2)]  # each against 1 x 1
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
    kinds = [draw(st.sampled_from(["dense", "sparse", "ragged"])) for _ in range(count)]
    features = tuple(
        FeatureConfig(
            name=f"f{place}",
            table=tables[place % len(tables)].name,
            max_sequence_length=0 if kind == "dense" else draw(st.sampled_from([0, 0, 2])),
        )
        for place, kind in enumerate(kinds)
    )
    return EmbeddingConfig(tables=tables, features=features), kinds


def samples_of(config, kinds, seed):
    generator = np.random.default_rng(seed)
    found = {}
    for feature, kind in zip(config.features, kinds, strict=True):
        rows = config.table(feature.table).vocabulary_size
        lengths = np.ones(BATCH, int) if kind == "dense" else generator.integers(0, 4, BATCH)
        ids = [generator.integers(0, rows, n).tolist() for n in lengths]
        weighted = kind != "dense" and not feature.max_sequence_length and generator.random() < 0.5
        weights = [generator.choice([0.0, 0.5, 1.0, -2.0], n).tolist() for n in lengths] if weighted else None
        found[feature.name] = Samples(ids, weights)
    return found


def trained(config, kinds, hosts, cores, steps=2):
    """Activations of every step in the order of the global batch, then all variables."""
    strategy = simulated_tpu(hosts=hosts, cores_per_host=cores)
    with strategy.scope():
        embedding = TPUEmbedding(config, None, seed=1)
    size = BATCH // (hosts * cores)
    embedding.build(size)

    def built(samples, kind, core):
        part = slice(core * size, (core + 1) * size)
        own = Samples(samples.ids[part], samples.weights and samples.weights[part])
        return (build_dense(own), None) if kind == "dense" else (build_sparse, build_ragged)[kind == "ragged"](own)

    @tf.function(autograph=False)
    def step(ids, weights):
        for part, weight, device in zip(ids, weights, strategy.extended.worker_devices, strict=True):
            embedding.enqueue(part, weight, device=device)

        def on_core():
            activations = embedding.dequeue()
            embedding.apply_gradients({name: value * 0.5 + 0.1 for name, value in activations.items()})
            return activations

        found = strategy.run(on_core)
        return {name: tf.concat(strategy.experimental_local_results(value), 0) for name, value in found.items()}

    found = []
    for seed in range(steps):
        batch = samples_of(config, kinds, seed)
        parts = [
            {name: built(samples, kind, core) for (name, samples), kind in zip(batch.items(), kinds, strict=True)}
            for core in range(hosts * cores)
        ]
        ids, weights = ([{name: pair[which] for name, pair in part.items()} for part in parts] for which in (0, 1))
        found += list(step(ids, weights).values())
    variables = embedding._engine.variables
    return [value.numpy() for value in found + [v for own in variables.values() for v in own.values()]]


def check(model, topology):
    gc.collect()
    config, kinds = model
    for one, other in zip(trained(config, kinds, 1, 1), trained(config, kinds, *topology), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from(TOPOLOGIES))
def test_random_model_is_the_same_on_every_topology(model, topology):
    check(model, topology)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from(TOPOLOGIES))
def test_many_random_models_are_the_same_on_every_topology(model, topology):
    check(model, topology)
