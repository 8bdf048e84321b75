"""Tests, on a hand-made store, which executions are closed, which outputs are set aside, and which stay."""

import json
import os

import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.local.metadata_repair import CONTENT, read_content, record_content, repair_metadata, set_aside
from tests.support.metadata import put_artifact, sqlite_store

pytestmark = pytest.mark.light

STATE = mlmd.Execution


class Pipeline:
    """A pipeline of one node in a store."""

    def __init__(self, store, root, name):
        self.store, self.root, self.name = store, root, name
        self.execution_type = store.put_execution_type(mlmd.ExecutionType(name="node"))
        kind = store.put_context_type(mlmd.ContextType(name="pipeline"))
        (self.context,) = store.put_contexts([mlmd.Context(type_id=kind, name=name)])

    def start(self, state=STATE.RUNNING):
        (found,) = self.store.put_executions([STATE(type_id=self.execution_type, last_known_state=state)])
        self.store.put_attributions_and_associations(
            [], [mlmd.Association(execution_id=found, context_id=self.context)]
        )
        folder = self.root / "Node" / "thing" / str(found)
        folder.mkdir(parents=True)
        (folder / "part").write_text("half")
        return found, folder

    def finish(self, execution, folder):
        (folder / "part").write_text("whole")
        artifact = put_artifact(self.store, "Thing", folder, self.name).id
        self.store.put_events([mlmd.Event(artifact_id=artifact, execution_id=execution, type=mlmd.Event.OUTPUT)])
        (found,) = self.store.get_executions_by_id([execution])
        found.last_known_state = STATE.COMPLETE
        self.store.put_executions([found])
        record_content(self.store, execution)
        return artifact

    def repair(self):
        return repair_metadata(self.store, self.name, str(self.root))

    def artifact(self, artifact_id):
        (found,) = self.store.get_artifacts_by_id([artifact_id])
        return found

    def set_property(self, artifact_id, key, value):
        found = self.artifact(artifact_id)
        setattr(found.custom_properties[key], "int_value" if isinstance(value, int) else "string_value", value)
        self.store.put_artifacts([found])

    def output(self):
        """Finish an execution; return its output's id and folder."""
        execution, folder = self.start()
        return self.finish(execution, folder), folder

    def state(self, artifact_id):
        return self.artifact(artifact_id).state


@pytest.fixture
def store(tmp_path):
    return sqlite_store(tmp_path / "metadata.sqlite")


@pytest.fixture
def pipeline(store, tmp_path):
    return Pipeline(store, tmp_path / "root", "demo")


@pytest.mark.parametrize("state", [STATE.NEW, STATE.RUNNING])
def test_execution_of_dead_run_is_closed_and_half_output_removed(pipeline, state):
    artifact, whole = pipeline.output()
    stale, half = pipeline.start(state)
    assert pipeline.repair().lost == ()
    assert not half.exists()
    assert (whole / "part").read_text() == "whole"
    assert pipeline.state(artifact) == mlmd.Artifact.LIVE
    (closed,) = pipeline.store.get_executions_by_id([stale])
    assert closed.last_known_state == STATE.FAILED


def test_run_of_another_pipeline_in_the_store_goes_on(pipeline, store, tmp_path):
    other, folder = Pipeline(store, tmp_path / "other", "other").start()
    pipeline.repair()
    assert folder.exists()
    (running,) = store.get_executions_by_id([other])
    assert running.last_known_state == STATE.RUNNING


def flip(folder):
    (folder / "part").write_text("whale")
    os.utime(folder / "part", (1, 1))  # two writes in one tick of the kernel's clock have the same time


def delete_file(folder):
    (folder / "part").unlink()


def delete_folder(folder):
    delete_file(folder)
    folder.rmdir()


def add_file(folder):
    (folder / "more").write_text("")


@pytest.mark.parametrize("damage", [flip, delete_file, delete_folder, add_file])
def test_changed_output_is_out_of_the_way_of_the_cache(pipeline, damage):
    artifact, folder = pipeline.output()
    damage(folder)
    assert pipeline.repair().lost == (artifact,)
    assert not folder.exists()
    assert pipeline.state(artifact) == mlmd.Artifact.DELETED
    assert pipeline.repair().lost == ()


def test_output_that_was_only_touched_stays(pipeline):
    artifact, folder = pipeline.output()
    os.utime(folder / "part", (1, 1))
    assert pipeline.repair().lost == ()
    assert pipeline.state(artifact) == mlmd.Artifact.LIVE


def test_unknown_pipeline_has_nothing_to_tidy(store):
    assert repair_metadata(store, "absent", "/nowhere") == repair_metadata(store, "absent too", "/nowhere")


def test_output_that_was_published_and_not_recorded_is_recorded(pipeline, monkeypatch):
    monkeypatch.setattr("tests.pipelines.local.test_metadata_repair.record_content", lambda *_: None)
    artifact, _ = pipeline.output()
    pipeline.repair()
    assert CONTENT in pipeline.artifact(artifact).custom_properties


def test_folder_of_the_user_is_recorded_again_and_never_renamed(pipeline, tmp_path):
    artifact, folder = pipeline.output()
    pipeline.set_property(artifact, "is_external", 1)
    flip(folder)
    assert pipeline.repair().lost == ()
    assert (folder / "part").read_text() == "whale"
    found = pipeline.artifact(artifact)
    assert json.loads(found.custom_properties[CONTENT].string_value)["digest"] == read_content(folder).digest
    assert not set_aside(pipeline.store, found)
    assert folder.exists()


@pytest.mark.parametrize("damage", [flip, delete_folder])
def test_served_copy_of_a_rollback_is_never_renamed(pipeline, damage):
    artifact, folder = pipeline.output()  # recorded, as an earlier release did
    pipeline.set_property(artifact, "rollback", '{"of": 1, "from": 2}')
    damage(folder)
    assert pipeline.repair().lost == ()
    assert folder.exists() == (damage is flip)
    assert not folder.with_name(f"{folder.name}.damaged").exists()
    assert pipeline.state(artifact) == mlmd.Artifact.LIVE


@pytest.mark.parametrize("text", ["{", "[]", '{"digest": 1}'])
def test_record_that_cannot_be_read_is_that_of_a_damaged_output(pipeline, text):
    artifact, _ = pipeline.output()
    pipeline.set_property(artifact, CONTENT, text)
    assert pipeline.repair().lost == (artifact,)


def test_record_beside_an_output_goes_with_it(pipeline):
    kept, damaged, half = (pipeline.start() for _ in range(3))
    for execution, folder in (kept, damaged):
        pipeline.finish(execution, folder)
    for _, folder in (kept, damaged, half):
        folder.with_name(f"{folder.name}.lineage.json").write_text("{}")
    flip(damaged[1])
    pipeline.repair()
    assert [path.name for path in pipeline.root.rglob("*.lineage.json")] == [f"{kept[0]}.lineage.json"]
