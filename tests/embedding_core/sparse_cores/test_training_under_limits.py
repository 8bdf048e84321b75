"""Simulated SparseCores train the same tables as a CPU, under the limits of the data."""

import dataclasses

import pytest

from embedding_core.errors import DataError
from embedding_core.planning.topology import named_topology
from embedding_core.sparse_cores import SparseCoreEmbeddingConfig
from embedding_core.sparse_cores.training_limits import sparse_core_limits
from embedding_core.training import train
from tests.support.training_jobs import WITHOUT_DROPOUT, assert_close, job_in


def _job(folder, **settings):
    job = job_in(folder, batch_size=32, epochs=1, decay="linear", **settings)  # the rate must not divide stacks
    return dataclasses.replace(job, arguments=WITHOUT_DROPOUT)


def _under_limits(job, *, less=0):
    """Give the job the limits that TableConfigGen computes, or lower ones."""
    made = sparse_core_limits(job, named_topology(job.training.topology))["forms"]["tensorflow"]
    limits = SparseCoreEmbeddingConfig.from_mapping(made)
    fewer = {stack: most - less for stack, most in limits.max_ids_per_table.items()}
    limits = limits.replace(max_ids_per_table=fewer)
    return dataclasses.replace(job, engine_arguments={"sparse_core_embedding_config": limits})


def test_simulated_sparse_cores_train_as_a_cpu_under_data_limits(tmp_path):
    job = _under_limits(_job(tmp_path, strategy="simulated_tpu", topology="v6e-4"))
    assert_close(train(_job(tmp_path), str(tmp_path / "cpu")), train(job, str(tmp_path / "found")))


def test_one_id_over_the_limit_ends_the_training(tmp_path):
    job = _under_limits(_job(tmp_path, strategy="simulated_tpu", topology="v6e-1"), less=1)
    with pytest.raises(DataError, match=r"may have at most \d+ ids in one partition"):
        train(job, str(tmp_path / "over"))
