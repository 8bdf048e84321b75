"""Hosts that read different files see every row once, with the same results as one host that reads all files."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError, DataError
from embedding_core.training import EarlyStopping, Negatives, train
from embedding_core.training.device_choice import Placement
from embedding_core.training.job import JobData
from embedding_core.training.row_stream import bound_to_one_process, files_by_host, refuse_local_paths
from tests.support.tf_examples import write_rows
from tests.support.training_jobs import SPEC, WITHOUT_DROPOUT, job_in, numbered, rows_by_host, state_of, transform


def job_of(folder, sizes, **training):
    """A job whose file k has sizes[k] rows; `number` counts the rows from 1, and the labels alternate."""
    job, names, first = job_in(folder, **training), [], 1
    for place, size in enumerate(sizes):
        names.append(write_rows(folder / f"part-{place}.gz", numbered(first, first + size - 1), "GZIP"))
        first += size
    return dataclasses.replace(job, train_files=names, eval_files=names, shard_files=True)


def data_of_two_hosts(job, cores_per_host=1):
    strategy = simulated_tpu(hosts=2, cores_per_host=cores_per_host)
    return JobData(job, Placement("simulated_tpu", strategy)), strategy


@pytest.mark.parametrize(("sizes", "cores"), [((1, 17), 1), ((5, 0, 4, 4), 2)])
def test_hosts_read_own_files_and_each_row_once_in_an_epoch(tmp_path, sizes, cores):
    data, strategy = data_of_two_hosts(job_of(tmp_path, sizes, batch_size=8), cores)
    firsts = np.cumsum([0, *sizes])
    own = [[n for k in range(host, len(sizes), 2) for n in range(firsts[k] + 1, firsts[k + 1] + 1)] for host in (0, 1)]
    assert data.steps_per_epoch == max(-(-len(files) // 4) for files in own)
    assert data.eval_steps == data.steps_per_epoch
    hosts, said = rows_by_host(data.eval(), strategy, data.eval_steps)
    assert [sorted(files) for files in hosts] == own
    assert sum(said) == sum(sizes)
    hosts, said = rows_by_host(data.train(0), strategy, 2 * data.steps_per_epoch)
    for seen, expected in zip(hosts, own, strict=True):
        assert sorted(seen[: len(expected)]) == sorted(seen[len(expected) :]) == expected
    assert sum(said) == 2 * sum(sizes)


def test_run_that_goes_on_in_an_epoch_sees_what_is_left_of_it(tmp_path):
    data, strategy = data_of_two_hosts(job_of(tmp_path, (20, 9), batch_size=8))
    whole, _ = rows_by_host(data.train(0), strategy, 5)
    rest, _ = rows_by_host(data.train(2), strategy, 3)
    assert rest == [row[8:] for row in whole]


def test_hosts_draw_negatives_of_their_own(tmp_path):
    job = job_of(tmp_path, (8, 8), batch_size=16, negatives=Negatives(feature="word", per_positive=7))
    data, strategy = data_of_two_hosts(job)
    first, other = strategy.experimental_local_results(next(iter(data.train(0)))["ids"]["word"])
    assert first.to_list() != other.to_list()


@pytest.mark.parametrize(
    "stopping", [None, pytest.param(EarlyStopping(metric="loss", validation_fraction=0.3), marks=pytest.mark.slow)]
)
def test_uneven_hosts_train_as_one_machine_on_the_same_batches(tmp_path, stopping):
    """The hosts have 100 and 50 rows, and each step's batch has all 150, or all but those of the validation part."""
    job = job_of(tmp_path, (100, 50), epochs=3, early_stopping=stopping, batch_size=150)
    job = dataclasses.replace(job, shard_files=None, arguments=WITHOUT_DROPOUT)
    alone = train(job, str(tmp_path / "alone"))
    training = job.training.replace(batch_size=200, strategy="simulated_tpu", topology="2x1")
    apart = train(dataclasses.replace(job, training=training, shard_files=True), str(tmp_path / "apart"))
    assert [run.history.facts["steps_done"] for run in (alone, apart)] == [3, 3]
    after = [0, 0] if stopping is None else [1, 1]
    assert [run.history.facts.get("validation_steps", 0) for run in (alone, apart)] == after
    for key, value in state_of(alone).items():
        np.testing.assert_allclose(value, state_of(apart)[key], rtol=2e-4, atol=2e-5, err_msg=key)


def test_fewer_files_than_hosts_are_refused_or_read_by_all():
    with pytest.raises(DataError, match="the train split has 1 files for 2 hosts"):
        files_by_host(["a"], [3], 2, "train", must=True)
    assert files_by_host(["a"], [3], 2, "train", must=False) == []


def test_batch_that_hosts_cannot_share_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"`batch_size` is 7: each of 2 hosts .* write 6 or 8"):
        data_of_two_hosts(job_of(tmp_path, (4, 4), batch_size=7))


def test_path_of_one_machine_is_refused():
    refuse_local_paths(["gs://bucket/a", "s3://bucket/b"])
    with pytest.raises(ConfigError, match="'/data/b' is a path of this machine"):
        refuse_local_paths(["gs://bucket/a", "/data/b"])


def test_transform_that_other_hosts_cannot_run_is_named():
    spec = {"number": tf.io.FixedLenFeature([], tf.float32)}
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0)

    def in_python(raw):
        return {"number": tf.py_function(lambda value: value, [raw["number"]], tf.float32)}

    def in_a_map(raw):
        return {"number": tf.map_fn(lambda value: tf.numpy_function(abs, [value], tf.float32), raw["number"])}

    def by_table(raw):
        return {"number": table.lookup(tf.cast(raw["number"], tf.int32))}

    assert list(bound_to_one_process(transform, SPEC)) == []
    assert "Python" in next(bound_to_one_process(in_python, spec))
    assert "Python" in next(bound_to_one_process(in_a_map, spec))
    assert "lookup table" in next(bound_to_one_process(by_table, spec))
