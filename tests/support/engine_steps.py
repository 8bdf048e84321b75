"""Builds the inputs of each core, and runs steps on the simulated TPU, for tests that compare engines."""

import tensorflow as tf

from embedding_core.engines import TPUEmbedding, simulated_tpu
from tests.embedding_core.oracle import Samples, build_dense, build_ragged, build_sparse


def build(kind, samples, order=None):
    """Return the ids and the weights of a feature; a generator puts sparse ids into random order."""
    if kind == "dense":
        return build_dense(samples), None
    if "sparse" in kind:
        return build_sparse(samples, order=order)
    return build_ragged(samples)


def parts_of(batch, cores):
    """Return the part of a batch that each core gets."""

    def part_of(samples, core):
        size = len(samples.ids) // cores
        rows = slice(core * size, (core + 1) * size)
        return Samples(samples.ids[rows], None if samples.weights is None else samples.weights[rows])

    return [{name: part_of(samples, core) for name, samples in batch.items()} for core in range(cores)]


def built(kinds, batch, cores, order=None):
    """Build the ids and the weights of a batch, each as one dict of tensors per core; `kinds` are by feature."""
    made = [
        {name: build(kinds[name], samples, order) for name, samples in part.items()} for part in parts_of(batch, cores)
    ]
    ids = [{name: value for name, (value, _) in part.items()} for part in made]
    return ids, [{name: w for name, (_, w) in part.items() if w is not None} for part in made]


def traced(step, *examples):
    """The step as a graph function that takes any number of ids: one trace for all batches."""

    def spec_of(value):
        if isinstance(value, tf.SparseTensor):
            return tf.SparseTensorSpec([value.shape[0], None], value.dtype)
        if isinstance(value, tf.RaggedTensor):
            return tf.RaggedTensorSpec([value.shape[0], None], value.dtype, ragged_rank=1)
        return tf.TensorSpec(value.shape, value.dtype)

    return tf.function(step, tf.nest.map_structure(spec_of, list(examples)), autograph=False)


def this_core():
    return tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)


def of_each_core(strategy, found):
    """Return the values of each core, as one dict per core."""
    local = {name: strategy.experimental_local_results(value) for name, value in found.items()}
    return [{name: value[core] for name, value in local.items()} for core in range(strategy.num_replicas_in_sync)]


class Simulated:
    """Runs the simulated TPU; the gradient of an activation is the activation times `scale`."""

    eager = False

    def __init__(self, config, optimizer, topology, batch, scale=1.0, seed=3):
        hosts, cores = topology
        self.cores = hosts * cores
        self._strategy = simulated_tpu(hosts=hosts, cores_per_host=cores)
        with self._strategy.scope():
            self._embedding = TPUEmbedding(config, optimizer, seed=seed)
        self._embedding.build(batch // self.cores)
        self._scale = scale

    def step(self, ids, weights):
        devices = self._strategy.extended.worker_devices
        for part, weight, device in zip(ids, weights, devices, strict=True):
            full = {name: weight.get(name) for name in part}
            self._embedding.enqueue(part, full if weight else None, device=device)

        def on_core():
            activations = self._embedding.dequeue()
            self._embedding.apply_gradients(tf.nest.map_structure(lambda value: self._scale * value, activations))
            return activations

        return of_each_core(self._strategy, self._strategy.run(on_core))

    def variables(self):
        return [variable for own in self._embedding._engine.variables.values() for variable in own.values()]
