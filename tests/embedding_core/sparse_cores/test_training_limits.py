"""The limits of a job are those of the batches that the trainer's own strategy gets, replica by replica."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.planning.topology import Topology, named_topology
from embedding_core.sparse_cores import Ids, LimitCounter, slice_of, stacks_of
from embedding_core.sparse_cores.training_limits import sparse_core_limits
from embedding_core.training import EarlyStopping, Negatives
from embedding_core.training.device_choice import Placement, choose_placement
from embedding_core.training.encoded_rows import RowsFolder
from embedding_core.training.job import JobData
from tests.support.tf_examples import write_rows
from tests.support.training_jobs import job_of_lists

ONE_HOST = Topology(name="one host", hosts=1, cores_per_host=2, bytes_per_core=2**30, sparse_cores=2)
TWO_HOSTS = Topology(name="two hosts", hosts=2, cores_per_host=1, bytes_per_core=2**30, sparse_cores=2)
STOPPING = EarlyStopping(validation_fraction=0.2)


class _TpuOfManyHosts(Placement):
    """Its hosts read different files if there are enough files, as those of a real TPU do."""

    @property
    def splits_files(self):
        return True


def _job(folder, **settings):
    return job_of_lists(folder, wide=False, positives="negatives" in settings, **{"epochs": 2, **settings})


def _limits_on_simulated_replicas(job, topology):
    """Count the ids of each replica's part of every batch, trained on or evaluated, as the trainer gets them."""
    training = job.training.replace(strategy="simulated_tpu", topology=f"{topology.hosts}x{topology.cores_per_host}")
    placement = _TpuOfManyHosts(*choose_placement(training))
    data = JobData(dataclasses.replace(job, training=training), placement)
    slice_, config = slice_of(topology), job.inputs.config
    size = data.rows_per_replica * slice_.chips
    counter = LimitCounter(config, slice_, size, stacks_of(config, slice_, size))
    for batch in itertools.chain(data.all_batches(), data.eval(), data.validation() or ()):
        whole = {}
        for feature in config.features:
            parts = placement.strategy.experimental_local_results(batch["ids"][feature.name])
            joined = tf.concat(parts, 0)
            whole[feature.name] = Ids(joined.values.numpy(), joined.row_splits.numpy())
            assert len(np.diff(joined.row_splits)) == size
        counter.add(whole)
    return size, data.all_steps, [limits.to_mapping() for limits in counter.limits()]


@pytest.mark.parametrize(
    ("topology", "apart", "settings"),
    [
        (ONE_HOST, False, {"early_stopping": STOPPING, "negatives": Negatives(feature="word", per_positive=2)}),
        (TWO_HOSTS, True, {"batch_size": 16, "shuffle_buffer": 5, "steps": 11, "epochs": None}),
        (TWO_HOSTS, False, {"batch_size": 16, "early_stopping": STOPPING}),  # both hosts read the file to evaluate
    ],
)
def test_limits_are_those_of_the_replicas_batches(tmp_path, topology, apart, settings):
    job = _job(tmp_path, **settings)
    if apart:
        job = dataclasses.replace(job, shard_files=True, eval_files=job.train_files)
    made = sparse_core_limits(job, topology)
    size, steps, stacks = _limits_on_simulated_replicas(job, topology)
    assert (made["batch_size"], made["batches"], made["batches_drawn"]) == (size, steps, steps)
    assert made["stacks"] == stacks
    assert (made["method"], made["confidence"]) == ("exact", None)


def test_rows_of_hosts_with_files_of_their_own_are_not_encoded(tmp_path):
    job = dataclasses.replace(_job(tmp_path), shard_files=True)
    placement = choose_placement(job.training.replace(strategy="simulated_tpu", topology="2x1"))
    folder = tmp_path / "rows"
    folder.mkdir()
    data = JobData(dataclasses.replace(job, eval_files=job.train_files), placement, RowsFolder(str(folder), False))
    assert data.hosts_apart == 2
    assert list(folder.iterdir()) == []


def test_batches_to_evaluate_count_too(tmp_path):
    train, same = (
        write_rows(tmp_path / name, [{"word": word, "number": 0.0, "label": 1}] * 64, "GZIP")
        for name, word in (("empty.gz", None), ("same.gz", b"w1"))
    )
    job = dataclasses.replace(_job(tmp_path), train_files=[train], eval_files=[same])
    made = sparse_core_limits(job, ONE_HOST)
    assert made["batches_evaluated"] == 2
    largest = max(stack["max_ids_per_partition"] for stack in made["stacks"])
    assert largest == 8  # the rows of a SparseCore, all with one id


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A job of 100 steps and its limits."""
    job = _job(tmp_path_factory.mktemp("long"), steps=100, epochs=None)
    return job, sparse_core_limits(job, ONE_HOST)


def test_long_training_gets_a_bound(long):
    job, exact = long
    made = sparse_core_limits(job, ONE_HOST, max_rows=32 * 40)
    assert (made["method"], made["batches"], made["batches_drawn"], made["confidence"]) == ("bound", 100, 40, 0.99)
    for bound, seen in zip(made["stacks"], exact["stacks"], strict=True):
        assert seen["max_ids_per_partition"] <= bound["max_ids_per_partition"]


def test_drift_is_against_the_previous_run(long):
    job, exact = long
    drift = sparse_core_limits(job, ONE_HOST, previous=exact["stacks"])["drift"]
    assert {stack["batches_over"] for stack in drift.values()} == {0}


def test_slice_without_sparse_cores_has_no_limits(tmp_path):
    assert sparse_core_limits(_job(tmp_path), named_topology("v3-8")) is None


def test_batch_that_does_not_divide_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is 34 with negatives, not a multiple of the 4 SparseCores"):
        sparse_core_limits(_job(tmp_path, batch_size=34), ONE_HOST)
