"""Tests the configuration keys that choose the evaluation and statistics engines and the number of worker processes."""

import os
from pathlib import Path

import pytest

from pipelines.config import load_config

pytestmark = pytest.mark.tfx
TAXI = Path(__file__).parents[3] / "pipelines" / "examples" / "taxi.yaml"


def nodes(*changes):
    from pipelines.pipeline.embedding_pipeline import create_pipeline

    return {node.id: node for node in create_pipeline(load_config(TAXI, list(changes))).components}


def test_defaults_are_one_pass_figures_and_sampled_statistics():
    import components

    found = nodes()
    assert type(found["Evaluator"]) is components.Evaluator
    assert found["StatisticsGen"].exec_properties["sample_rows"] == 10_000


def test_tfxs_own_are_one_key_away():
    from tfx.components import Evaluator

    found = nodes("evaluation.engine=tfma", "data.statistics=exact")
    assert type(found["Evaluator"]) is Evaluator
    assert found["StatisticsGen"].exec_properties["sample_rows"] == 0


@pytest.mark.parametrize(("workers", "mode"), [(1, "in_memory"), (3, "multi_processing")])
def test_workers_are_processes_of_beam(workers, mode):
    from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

    from pipelines.pipeline.run_target import local_target

    target = local_target(load_config(TAXI, [f"data.workers={workers}"]))
    options = PipelineOptions(list(target.beam_args)).view_as(DirectOptions)
    assert options.direct_running_mode == mode
    assert options.direct_num_workers == workers


@pytest.mark.room("dask")
def test_components_get_beam_on_dask_by_the_projects_runner():
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    from pipelines.pipeline.run_target import local_target

    target = local_target(load_config(TAXI, ["beam.runner=dask", "beam.address=tcp://10.0.0.5:8786"]))
    options = PipelineOptions(list(target.beam_args)).view_as(StandardOptions)
    assert options.runner == "components.dask.dask_runner.DaskRunner"
    assert "--dask_cluster=tcp://10.0.0.5:8786" in target.beam_args


@pytest.mark.parametrize(("workers", "given"), [(1, None), (3, None), (3, "/else")])
def test_workers_find_the_modules_of_the_user(monkeypatch, workers, given):
    from pipelines.local.run_local import _found_by_workers

    monkeypatch.delenv("PYTHONPATH", raising=False)
    if given:
        monkeypatch.setenv("PYTHONPATH", given)
    config = load_config(TAXI, [f"data.workers={workers}"])
    with _found_by_workers(config):
        found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    assert (config.python_path in found) == (workers > 1)
    assert not given or found[0] == given
    assert os.environ.get("PYTHONPATH") == given
