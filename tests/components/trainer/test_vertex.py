"""The trainer as a Vertex AI job: the job that is started, and the settings that the trainer in it gets."""

import json

import pytest

pytestmark = pytest.mark.tfx

JOB = {
    "ai_platform_enable_vertex": True,
    "ai_platform_vertex_region": "us-west4",
    "ai_platform_training_args": {"project": "p", "worker_pool_specs": [{"machine_spec": {}}]},
}


@pytest.fixture
def artifacts(tmp_path):
    from tfx.types import standard_artifacts

    from components.artifacts import TableConfigs, Vocabularies
    from tests.support.artifacts import artifact, examples_at

    kinds = {
        "vocabularies": Vocabularies,
        "table_configs": TableConfigs,
        "model": standard_artifacts.Model,
        "model_run": standard_artifacts.ModelRun,
    }
    made = {name: [artifact(kind, tmp_path / name, made=False)] for name, kind in kinds.items()}
    return {"examples": [examples_at(tmp_path / "examples")], **made}


def inputs(artifacts):
    return {name: artifacts[name] for name in ("examples", "vocabularies", "table_configs")}


def outputs(artifacts):
    return {name: artifacts[name] for name in ("model", "model_run")}


def test_job_runs_our_executor_and_its_facts_come_back(artifacts, monkeypatch):
    from tfx.extensions.google_cloud_ai_platform import runner

    from components.trainer import executor
    from components.trainer.vertex import VertexExecutor

    started = []
    monkeypatch.setattr(runner, "start_cloud_training", lambda *given: started.append(given))
    monkeypatch.setattr(executor, "_facts", lambda folder: {"step": 7} if folder.endswith("model_run") else {})
    VertexExecutor().Do(inputs(artifacts), outputs(artifacts), {"custom_config": json.dumps({"training": {}, **JOB})})
    ((_, _, _, path, job, _, _, is_vertex, region),) = started
    assert path == "components.trainer.executor.Executor"
    assert (job, is_vertex, region) == (JOB["ai_platform_training_args"], True, "us-west4")
    assert artifacts["model"][0].get_string_custom_property("step") == "7"


@pytest.mark.parametrize(("steps", "training"), [(0, {"epochs": 8}), (30.0, {"steps": 30, "epochs": None})])
def test_trainer_takes_given_steps_and_is_not_told_of_the_job(artifacts, steps, training):
    from components.trainer.executor import Executor

    properties = {
        "custom_config": json.dumps({"training": {"epochs": 8}, **JOB}),
        "train_args": '{"splits": ["train"]}',
        "eval_args": '{"splits": ["eval"]}',
        "training_steps": steps,
    }
    told = Executor()._GetFnArgs(inputs(artifacts), outputs(artifacts), properties).custom_config
    assert told["training"] == training
    assert not [key for key in told if key.startswith("ai_platform")]
