"""Random models on random topologies: tables, slots and activations do not depend on hosts and cores."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedding_core import FTRL, SGD, Adagrad, AdagradMomentum, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import TPUEmbedding, simulated_tpu
from tests.embedding_core.oracle import Samples, build_dense, build_ragged, build_sparse

simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation

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
    return EmbeddingConfig(tables=tables, features=features), kinds


def samples_of(config, kinds, seed):
    generator = np.random.default_rng(seed)
    found = {}
    for feature, kind in zip(config.features, kinds, strict=True):
        rows = config.table(feature.table).vocabulary_size
        lengths = np.ones(BATCH, int) if kind == "dense" else generator.integers(0, 4, BATCH)
        ids = [generator.integers(0, rows, n).tolist() for n in lengths]
        weights = [generator.choice([0.0, 0.5, 1.0, -2.0], n).tolist() for n in lengths]
        found[feature.name] = Samples(ids, weights if kind.startswith("weighted") else None)
    return found


def specs_of(*examples):
    """Return an input signature in which sparse and ragged values may hold any number of ids."""
    kinds = {
        tf.SparseTensor: lambda value: tf.SparseTensorSpec([value.shape[0], None], value.dtype),
        tf.RaggedTensor: lambda value: tf.RaggedTensorSpec([value.shape[0], None], value.dtype, ragged_rank=1),
    }
    return tf.nest.map_structure(lambda value: kinds.get(type(value), tf.TensorSpec.from_tensor)(value), list(examples))


def trained(config, kinds, hosts, cores, steps=2):
    """Train; return the activations of every step in the order of the global batch, then all variables."""
    strategy = simulated_tpu(hosts=hosts, cores_per_host=cores)
    with strategy.scope():
        embedding = TPUEmbedding(config, None, seed=1)
    size = BATCH // (hosts * cores)
    embedding.build(size)

    def built(samples, kind, core):
        part = slice(core * size, (core + 1) * size)
        own = Samples(samples.ids[part], samples.weights and samples.weights[part])
        return (build_dense(own), None) if kind == "dense" else (build_sparse, build_ragged)["ragged" in kind](own)

    def step(ids, weights):
        for part, weight, device in zip(ids, weights, strategy.extended.worker_devices, strict=True):
            embedding.enqueue(part, {name: weight.get(name) for name in part}, device=device)

        def on_core():
            activations = embedding.dequeue()
            embedding.apply_gradients({name: value * 0.5 + 0.1 for name, value in activations.items()})
            return activations

        found = strategy.run(on_core)
        return {name: tf.concat(strategy.experimental_local_results(value), 0) for name, value in found.items()}

    found, traced = [], None
    for seed in range(steps):
        batch = samples_of(config, kinds, seed)
        parts = [
            {name: built(samples, kind, core) for (name, samples), kind in zip(batch.items(), kinds, strict=True)}
            for core in range(hosts * cores)
        ]
        ids = [{name: value for name, (value, _) in part.items()} for part in parts]
        weights = [{name: value for name, (_, value) in part.items() if value is not None} for part in parts]
        traced = traced or tf.function(step, specs_of(ids, weights), autograph=False)
        found += list(traced(ids, weights).values())
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
