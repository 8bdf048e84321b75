"""The trainer in a pool of workers or servers of a Vertex AI job."""

import json

import pytest

pytestmark = pytest.mark.tfx


@pytest.mark.parametrize(("kind", "serves"), [("worker", True), ("ps", True), ("chief", False)])
def test_workers_and_servers_of_the_job_serve_and_write_nothing(monkeypatch, kind, serves):
    """All pools of a job start the same command; a real server would never return."""
    from components.trainer import executor

    cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}}))
    served, executed = [], []
    monkeypatch.setattr("embedding_core.parameter_server.strategy.serve", lambda task: served.append(task.kind))
    monkeypatch.setattr(executor.Executor, "execute", lambda self, execution: executed.append(execution))
    monkeypatch.setattr("components.base_executor.record_lineage", lambda *args, **kwargs: None)
    executor.Executor().Do({}, {}, {})
    assert (served, bool(executed)) == ([kind] if serves else [], not serves)
