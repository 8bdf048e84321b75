"""Tests that the exit code of a run is that of what it did, also if its report cannot be made."""

import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from tests.pipelines.commands.exit_code import exit_code
from tests.support.metadata import sqlite_store

pytestmark = pytest.mark.tfx

CONFIG = "data: rows.csv\nlabel: label\nfeatures: {categorical: [item]}\n"


def recorded(store, node, type_name, **facts):
    """Record an execution with one output; return it as a node run, and the id of the output."""
    from pipelines.report.run_report import NodeRun

    artifact = mlmd.Artifact(type_id=store.put_artifact_type(mlmd.ArtifactType(name=type_name)))
    for key, value in facts.items():
        artifact.custom_properties[key].string_value = value
    if facts.get("pushed_version"):
        artifact.custom_properties["pushed"].int_value = 1
    kind = store.put_execution_type(mlmd.ExecutionType(name=node))
    output = [(artifact, mlmd.Event(type=mlmd.Event.OUTPUT))]
    context = mlmd.Context(type_id=store.put_context_type(mlmd.ContextType(name="node")), name=node)
    execution, (made,), _ = store.put_execution(mlmd.Execution(type_id=kind), output, [context])
    return NodeRun(node=node, index=1, count=1, state="executed", execution=execution), made


@pytest.mark.parametrize(
    ("facts", "code", "outcome"),
    [
        ({"pushed_version": "7", "pushed_destination": "/srv/7"}, 0, "pushed version 7 to /srv/7"),
        ({"reason": "too few rows."}, 3, "nothing was pushed: too few rows. auc is 0.6."),
    ],
)
def test_report_that_fails_leaves_exit_code_and_outcome(tmp_path, monkeypatch, capfd, facts, code, outcome):
    from pipelines.local import run_local
    from pipelines.report import run_figures

    (tmp_path / "rows.csv").write_text("item,label\n" + "".join(f"{row},{row % 2}\n" for row in range(40)))
    (tmp_path / "my.yaml").write_text(CONFIG)
    store = sqlite_store(tmp_path / "runs.sqlite")
    evaluator, _ = recorded(store, "Evaluator", "ModelEvaluation")
    pusher, pushed = recorded(store, "EmbeddingPusher", "PushedModel", **facts)
    monkeypatch.setattr(run_local, "open_store", lambda _: store)
    monkeypatch.setattr(run_figures, "collect_report", lambda *_: {}["figures"])
    monkeypatch.setattr(run_local, "missed_thresholds", lambda _: ["auc is 0.6."])
    monkeypatch.setattr(run_local, "_run_until_served", lambda *_, **__: ([evaluator, pusher], pushed))
    assert exit_code("run", tmp_path / "my.yaml") == code
    out, err = capfd.readouterr()
    assert outcome in out
    assert [line for line in err.splitlines() if line.startswith("warning: the report")] == [
        "warning: the report of this run could not be made: KeyError: 'figures'"
    ]
