"""A step that fails leaves nothing behind: no batch, no ids that wait for gradients, no stale rows."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import SGD, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import TPUEmbedding, simulated_tpu
from tests.support.engine_steps import this_core

ROWS = 6
CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary_size=ROWS, dim=1, combiner="sum"),),
    features=(FeatureConfig(name="f", table="t"),),
)


class UserError(Exception):
    """Raised by the user's code."""


class Trainer:
    """A model of one table whose row i starts as [i]; a step returns the activations of all cores."""

    def __init__(self, hosts=1, cores=2, *, where="outside", pipelined=False, training=True, traced=True):
        self.strategy = simulated_tpu(hosts=hosts, cores_per_host=cores)
        with self.strategy.scope():
            self.embedding = TPUEmbedding(CONFIG, SGD(learning_rate=1.0), pipeline_execution_with_tensor_core=pipelined)
        self.embedding.build(1)
        self.table = self.embedding._engine.variables["t"]["parameters"]
        self.table.assign(tf.range(ROWS, dtype=tf.float32)[:, tf.newaxis])
        self.where, self.training = where, training
        self.step = tf.function(self.eager_step) if traced else self.eager_step

    def fails(self, here, fail):
        """Fail if `fail` is the index of the place `here`: in a graph by an Assert, in eager code by a UserError."""
        if tf.executing_eagerly():
            if int(fail) == PLACES.index(here):
                raise UserError(here)
        else:
            tf.debugging.Assert(tf.not_equal(fail, PLACES.index(here)), [here])

    def eager_step(self, ids, fail):
        with tf.device("CPU:0"):
            parts = [ids[core : core + 1] for core in range(self.strategy.num_replicas_in_sync)]

        def on_core():
            if self.where == "inside":
                self.embedding.enqueue({"f": parts[this_core()]}, training=self.training)
            self.fails("enqueued", fail)
            activations = self.embedding.dequeue()
            self.fails("dequeued", fail)
            if self.training:
                with tf.control_dependencies([activations["f"]]):
                    self.embedding.apply_gradients({"f": tf.zeros_like(activations["f"])})
            self.fails("applied", fail)
            return activations["f"]

        if self.where == "outside":
            for core, device in enumerate(self.strategy.extended.worker_devices):
                self.embedding.enqueue({"f": parts[core]}, training=self.training, device=device)
        return self.on_all_cores(on_core)

    def on_all_cores(self, function):
        """Run a function on every core; return the activations of all."""
        return tf.concat(self.strategy.experimental_local_results(self.strategy.run(function)), 0)[:, 0]


PLACES = ["nowhere", "enqueued", "dequeued", "applied"]
ERRORS = (UserError, tf.errors.InvalidArgumentError)


def ids_of(trainer, first):
    return tf.constant([(first + core) % ROWS for core in range(trainer.strategy.num_replicas_in_sync)])


OUTSIDE, INSIDE = {"where": "outside"}, {"where": "inside"}


@pytest.mark.parametrize(
    "arguments",
    [
        OUTSIDE,
        INSIDE,
        {"pipelined": True},
        {"training": False},
        {"hosts": 2, "cores": 1},
        OUTSIDE | {"traced": False},
        INSIDE | {"traced": False},
    ],
    ids=["outside", "inside", "pipelined", "evaluation", "two hosts", "outside, eager", "inside, eager"],
)
def test_good_steps_after_failed_ones_return_rows_of_their_ids(arguments):
    """Users' code fails at each place of a step, and an id is invalid on each core; good steps are in between."""
    trainer = Trainer(**arguments)
    nowhere = tf.constant(0)
    failing = [(ids_of(trainer, 3), PLACES.index(place)) for place in PLACES[1:]]
    failing += [(tf.constant(ids), 0) for ids in ([ROWS + 7, 4], [3, ROWS + 7])]
    trainer.step(ids_of(trainer, 0), nowhere)
    for ids, fail in failing:
        with pytest.raises(ERRORS):
            trainer.step(ids, tf.constant(fail))
        for first in (2, 4):
            wanted = ids_of(trainer, first)
            np.testing.assert_array_equal(trainer.step(wanted, nowhere), wanted)
    np.testing.assert_array_equal(trainer.table[:, 0], np.arange(ROWS))


@pytest.mark.parametrize("core", [0, 1])
def test_one_core_is_fed_and_the_other_refused(core):
    trainer = Trainer()
    devices = trainer.strategy.extended.worker_devices
    trainer.step(ids_of(trainer, 0), tf.constant(0))
    for place, device in enumerate(devices[: core + 1]):
        expected = pytest.raises(ValueError, match="shape") if place == core else contextlib.nullcontext()
        with expected:
            trainer.embedding.enqueue({"f": tf.fill([2 if place == core else 1], 1)}, device=device)
    wanted = ids_of(trainer, 3)
    np.testing.assert_array_equal(trainer.step(wanted, tf.constant(0)), wanted)


def test_function_that_only_enqueues_failed():
    trainer = Trainer()
    devices = trainer.strategy.extended.worker_devices

    @tf.function
    def enqueue(ids, good):
        trainer.embedding.enqueue({"f": ids[:1]}, device=devices[0])
        tf.debugging.Assert(good, ["bad"])
        with tf.control_dependencies([tf.debugging.Assert(good, ["bad"])]):
            trainer.embedding.enqueue({"f": tf.identity(ids[1:])}, device=devices[1])

    @tf.function
    def train():
        return trainer.on_all_cores(lambda: trainer.embedding.dequeue()["f"])

    for first in (1, 2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
            enqueue(tf.constant([0, 5]), tf.constant(False))
        with pytest.raises(tf.errors.InvalidArgumentError, match="A step that failed"):
            train()
        trainer.training = False
        enqueue(tf.constant([first, first + 1]), tf.constant(True))
        np.testing.assert_array_equal(train(), [first, first + 1])
        trainer.embedding._engine.step_failed()


def test_loop_that_failed_in_its_second_round():
    trainer = Trainer()

    @tf.function
    def steps(ids, rounds, last):
        found = tf.zeros([2])
        for turn in tf.range(rounds):
            found = trainer.eager_step(ids + turn, tf.where(turn + 1 == rounds, last, 0))
        return found

    for place in PLACES[1:3]:
        np.testing.assert_array_equal(steps(tf.constant([0, 1]), 3, 0), [2, 3])
        with pytest.raises(tf.errors.InvalidArgumentError):
            steps(tf.constant([0, 1]), 2, PLACES.index(place))
    np.testing.assert_array_equal(trainer.step(tf.constant([4, 5]), tf.constant(0)), [4, 5])


def test_batches_that_wait_for_later_steps_stay():
    trainer = Trainer(training=False)
    enqueue = tf.function(lambda ids: trainer.embedding.enqueue({"f": ids}, training=False))

    evaluate = tf.function(lambda: trainer.on_all_cores(lambda: trainer.embedding.dequeue()["f"]))
    for first in (1, 2, 3):
        enqueue(tf.constant([first]))
    for first in (1, 2, 3):
        np.testing.assert_array_equal(evaluate(), [first, first])


def test_training_batch_without_its_gradients_is_one_error():
    trainer = Trainer()

    def dequeue_only(ids):
        trainer.embedding.enqueue({"f": ids[:1]})
        return trainer.strategy.run(lambda: trainer.embedding.dequeue()["f"])

    dequeue_only(tf.constant([1, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="waits for its gradients"):
        dequeue_only(tf.constant([1, 2]))
    wanted = ids_of(trainer, 3)
    np.testing.assert_array_equal(trainer.step(wanted, tf.constant(0)), wanted)
