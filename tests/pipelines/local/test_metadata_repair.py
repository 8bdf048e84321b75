"""Tests, on a hand-made store, which executions are closed, which outputs are set aside, and which stay."""

import json
import os

import ml_metadata
import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.local.content import CONTENT, read_content
from pipelines.local.metadata_repair import record_content, repair_metadata, set_aside

pytestmark = pytest.mark.light

STATE = mlmd.Execution


class Pipeline:
    """A pipeline of one node in a store."""

    def __init__(self, store, root, name):
        self.store, self.root, self.name = store, root, name
        self.artifact_type = store.put_artifact_type(mlmd.ArtifactType(name="Thing"))
        self.execution_type = store.put_execution_type(mlmd.ExecutionType(name="node"))
        kind = store.put_context_type(mlmd.ContextType(name="pipeline"))
        (self.context,) = store.put_contexts([mlmd.Context(type_id=kind, name=name)])

    def start(self):
        (found,) = self.store.put_executions([STATE(type_id=self.execution_type, last_known_state=STATE.RUNNING)])
        self.store.put_attributions_and_associations(
            [], [mlmd.Association(execution_id=found, context_id=self.context)]
        )
        folder = self.root / "Node" / "thing" / str(found)
        folder.mkdir(parents=True)
        (folder / "part").write_text("half")
        return found, folder

    def finish(self, execution, folder):
        (folder / "part").write_text("whole")
        item = mlmd.Artifact(type_id=self.artifact_type, uri=str(folder), state=mlmd.Artifact.LIVE)
        (artifact,) = self.store.put_artifacts([item])
        self.store.put_attributions_and_associations(
            [mlmd.Attribution(artifact_id=artifact, context_id=self.context)], []
        )
        self.store.put_events([mlmd.Event(artifact_id=artifact, execution_id=execution, type=mlmd.Event.OUTPUT)])
        (found,) = self.store.get_executions_by_id([execution])
        found.last_known_state = STATE.COMPLETE
        self.store.put_executions([found])
        record_content(self.store, execution)
        return artifact

    def state(self, artifact):
        (found,) = self.store.get_artifacts_by_id([artifact])
        return found.state


@pytest.fixture
def store(tmp_path):
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(tmp_path / "metadata.sqlite")
    connection.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    return ml_metadata.MetadataStore(connection)


@pytest.fixture
def pipeline(store, tmp_path):
    return Pipeline(store, tmp_path / "root", "demo")


def test_execution_of_dead_run_is_closed_and_half_output_removed(pipeline):
    finished, whole = pipeline.start()
    artifact = pipeline.finish(finished, whole)
    stale, half = pipeline.start()
    assert repair_metadata(pipeline.store, "demo", str(pipeline.root)).lost == ()
    assert not half.exists()
    assert (whole / "part").read_text() == "whole"
    assert pipeline.state(artifact) == mlmd.Artifact.LIVE
    (closed,) = pipeline.store.get_executions_by_id([stale])
    assert closed.last_known_state == STATE.FAILED


def test_run_of_another_pipeline_in_the_store_goes_on(pipeline, store, tmp_path):
    other, folder = Pipeline(store, tmp_path / "other", "other").start()
    repair_metadata(store, "demo", str(pipeline.root))
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
    execution, folder = pipeline.start()
    artifact = pipeline.finish(execution, folder)
    damage(folder)
    assert repair_metadata(pipeline.store, "demo", str(pipeline.root)).lost == (artifact,)
    assert not folder.exists()
    assert pipeline.state(artifact) == mlmd.Artifact.DELETED
    assert repair_metadata(pipeline.store, "demo", str(pipeline.root)).lost == ()


def test_output_that_was_only_touched_stays(pipeline):
    execution, folder = pipeline.start()
    artifact = pipeline.finish(execution, folder)
    os.utime(folder / "part", (1, 1))
    assert repair_metadata(pipeline.store, "demo", str(pipeline.root)).lost == ()
    assert pipeline.state(artifact) == mlmd.Artifact.LIVE


def test_content_of_an_output_is_recorded(pipeline):
    execution, folder = pipeline.start()
    artifact = pipeline.finish(execution, folder)
    (found,) = pipeline.store.get_artifacts_by_id([artifact])
    content = json.loads(found.custom_properties[CONTENT].string_value)
    assert (content["size"], content["files"]) == (5, 1)
    assert content["digest"] == read_content(folder).digest


def test_unknown_pipeline_has_nothing_to_tidy(store):
    assert repair_metadata(store, "absent", "/nowhere") == repair_metadata(store, "absent too", "/nowhere")


def test_output_that_was_published_and_not_recorded_is_recorded(pipeline, monkeypatch):
    monkeypatch.setattr("tests.pipelines.local.test_metadata_repair.record_content", lambda *_: None)
    artifact = pipeline.finish(*pipeline.start())
    repair_metadata(pipeline.store, "demo", str(pipeline.root))
    (recorded,) = pipeline.store.get_artifacts_by_id([artifact])
    assert CONTENT in recorded.custom_properties


def test_folder_of_the_user_is_recorded_again_and_never_renamed(pipeline, tmp_path):
    execution, folder = pipeline.start()
    artifact = pipeline.finish(execution, folder)
    (found,) = pipeline.store.get_artifacts_by_id([artifact])
    found.custom_properties["is_external"].int_value = 1
    pipeline.store.put_artifacts([found])
    flip(folder)
    assert repair_metadata(pipeline.store, "demo", str(pipeline.root)).lost == ()
    assert (folder / "part").read_text() == "whale"
    (found,) = pipeline.store.get_artifacts_by_id([artifact])
    assert json.loads(found.custom_properties[CONTENT].string_value)["digest"] == read_content(folder).digest
    assert not set_aside(pipeline.store, found)
    assert folder.exists()


@pytest.mark.parametrize("damage", [flip, delete_folder])
def test_served_copy_of_a_rollback_is_never_renamed(pipeline, damage):
    execution, folder = pipeline.start()
    artifact = pipeline.finish(execution, folder)  # recorded, as an earlier release did
    (found,) = pipeline.store.get_artifacts_by_id([artifact])
    found.custom_properties["rollback"].string_value = '{"of": 1, "from": 2}'
    pipeline.store.put_artifacts([found])
    damage(folder)
    assert repair_metadata(pipeline.store, "demo", str(pipeline.root)).lost == ()
    assert folder.exists() == (damage is flip)
    assert not folder.with_name(f"{folder.name}.damaged").exists()
    assert pipeline.state(artifact) == mlmd.Artifact.LIVE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": 1}'])
def test_record_that_cannot_be_read_is_that_of_a_damaged_output(pipeline, text):
    artifact = pipeline.finish(*pipeline.start())
    (found,) = pipeline.store.get_artifacts_by_id([artifact])
    found.custom_properties[CONTENT].string_value = text
    pipeline.store.put_artifacts([found])
    assert repair_metadata(pipeline.store, "demo", str(pipeline.root)).lost == (artifact,)


def test_outputs_of_a_lost_store_are_moved_out_of_the_way(pipeline):
    execution, folder = pipeline.start()
    pipeline.finish(execution, folder)
    later = pipeline.root / "Node" / "thing" / str(execution + 7)
    later.mkdir()
    (later / "tokens").write_text("of a feature that is removed")
    (later.parent / f"{later.name}.lineage.json").write_text("{}")
    found = repair_metadata(pipeline.store, "demo", str(pipeline.root))
    assert found.left_over == f"{pipeline.root}.lost"
    assert sorted(path.name for path in later.parent.iterdir()) == [str(execution)]
    moved = pipeline.root.with_name("root.lost") / "Node" / "thing"
    assert (moved / later.name / "tokens").read_text() == "of a feature that is removed"
    assert (moved / f"{later.name}.lineage.json").exists()
    assert repair_metadata(pipeline.store, "demo", str(pipeline.root)).left_over is None


def test_record_beside_an_output_goes_with_it(pipeline):
    kept, damaged, half = (pipeline.start() for _ in range(3))
    for execution, folder in (kept, damaged):
        pipeline.finish(execution, folder)
    for _, folder in (kept, damaged, half):
        folder.with_name(f"{folder.name}.lineage.json").write_text("{}")
    flip(damaged[1])
    repair_metadata(pipeline.store, "demo", str(pipeline.root))
    assert [path.name for path in pipeline.root.rglob("*.lineage.json")] == [f"{kept[0]}.lineage.json"]
