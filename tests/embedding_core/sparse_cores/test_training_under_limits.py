"""Simulated SparseCores train the same tables as a CPU, under the limits of the data."""

import dataclasses
import importlib.util
import pathlib

import pytest

from embedding_core.errors import DataError
from embedding_core.planning.topology import named_topology
from embedding_core.sparse_cores import SparseCoreEmbeddingConfig
from embedding_core.sparse_cores.training_limits import sparse_core_limits
from embedding_core.training import train

_spec = importlib.util.spec_from_file_location(
    "strategies", pathlib.Path(__file__).parents[1] / "training" / "test_strategies.py"
)
strategies = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(strategies)
make_job = strategies.make_job
LIMITS = "sparse_core_embedding_config"


@pytest.mark.parametrize("topology", [pytest.param("v5p-8", marks=pytest.mark.slow), "v6e-4"])
def test_simulated_sparse_cores_train_as_a_cpu_under_data_limits(make_job, tmp_path, topology):
    """The limits are those that TableConfigGen computes: with one id less, the same training fails."""
    settings = {"batch_size": 32, "epochs": 1, "decay": "linear"}  # the rate, a function, must not divide stacks
    job = make_job(strategy="simulated_tpu", topology=topology, **settings)
    made = sparse_core_limits(job, named_topology(topology))["forms"]["tensorflow"]
    job = dataclasses.replace(job, engine_arguments={LIMITS: SparseCoreEmbeddingConfig.from_mapping(made)})
    strategies.close(
        train(make_job(strategy="cpu", **settings), str(tmp_path / "cpu")), train(job, str(tmp_path / "found"))
    )
    fewer = {stack: most - 1 for stack, most in made["max_ids_per_table"].items()}
    limits = job.engine_arguments[LIMITS].replace(max_ids_per_table=fewer)
    over = dataclasses.replace(job, engine_arguments={LIMITS: limits})
    with pytest.raises(DataError, match=f"may have at most {fewer['words']} ids in one partition"):
        train(over, str(tmp_path / "over"))
