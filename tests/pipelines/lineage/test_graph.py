import contextlib
import io
import json
import sqlite3

import ml_metadata
import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd
from rich.console import Console

from embedding_core.errors import DataError
from pipelines.commands.lineage_command import lineage_tree
from pipelines.lineage.graph import open_store, outputs_of, read_graph, read_node, trace

pytestmark = pytest.mark.light

EVENT, STATE = mlmd.Event, mlmd.Execution


@pytest.fixture
def metadata(tmp_path):
    """Make a store of examples, the model made from them, its push, and a cached execution that returned this push."""
    path = tmp_path / "metadata.sqlite"
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(path)
    store = ml_metadata.MetadataStore(connection)
    types = {
        name: store.put_artifact_type(mlmd.ArtifactType(name=name)) for name in ("Examples", "Model", "PushedModel")
    }
    node = store.put_execution_type(mlmd.ExecutionType(name="node"))
    place = store.put_context_type(mlmd.ContextType(name="node"))
    (context,) = store.put_contexts([mlmd.Context(type_id=place, name="pipeline.Node")])

    def artifact(kind, **facts):
        item = mlmd.Artifact(type_id=types[kind], uri=f"/{kind}", state=mlmd.Artifact.LIVE)
        for key, value in facts.items():
            item.custom_properties[key].string_value = value
        return store.put_artifacts([item])[0]

    def execution(state, inputs, outputs):
        (found,) = store.put_executions([STATE(type_id=node, last_known_state=state)])
        store.put_attributions_and_associations([], [mlmd.Association(execution_id=found, context_id=context)])
        events = [EVENT(artifact_id=artifact, execution_id=found, type=EVENT.INPUT) for artifact in inputs]
        store.put_events(
            events + [EVENT(artifact_id=output, execution_id=found, type=EVENT.OUTPUT) for output in outputs]
        )
        return found

    examples, model = artifact("Examples"), artifact("Model", facts=json.dumps({"auc": 0.9}))
    pushed = artifact("PushedModel", pushed_version="7", note="not JSON {")
    execution(STATE.COMPLETE, [], [examples])
    execution(STATE.COMPLETE, [examples], [model])
    first = execution(STATE.COMPLETE, [model], [pushed])
    cached = execution(STATE.CACHED, [examples], [pushed])
    return {"path": path, "pushed": pushed, "first": first, "cached": cached, "model": model, "examples": examples}


def test_trace_reaches_the_examples_through_real_producers(metadata):
    nodes = trace(open_store(metadata["path"]), metadata["pushed"])
    assert list(nodes) == [metadata["pushed"], metadata["model"], metadata["examples"]]
    producer = nodes[metadata["pushed"]].producer
    assert (producer.id, producer.node) == (metadata["first"], "Node")


def test_graph_is_read_again_only_where_it_changed(metadata):
    store, known = open_store(metadata["path"]), {}
    before = read_graph(store, known=known)
    assert before == read_graph(store)
    with contextlib.closing(sqlite3.connect(metadata["path"])) as database, database:  # in the ms of its last update
        database.execute("UPDATE ArtifactProperty SET string_value = 'rolled back' WHERE name = 'note'")
    after = read_graph(store, known=known)
    assert after == read_graph(store)
    assert after[metadata["pushed"]].facts["note"] == "rolled back"
    assert [node for node in before if after[node] is not before[node]] == [metadata["pushed"]]
    assert trace(store, metadata["pushed"], after) == trace(store, metadata["pushed"])
    assert read_node(store, metadata["pushed"]) == after[metadata["pushed"]]


def test_facts_are_decoded_where_they_are_json(metadata):
    nodes = trace(open_store(metadata["path"]), metadata["pushed"])
    assert nodes[metadata["model"]].facts == {"facts": {"auc": 0.9}}
    assert nodes[metadata["pushed"]].facts["note"] == "not JSON {"


def test_outputs_of_a_cached_execution_are_those_of_the_cache(metadata):
    assert outputs_of(open_store(metadata["path"]), metadata["cached"]) == [metadata["pushed"]]


def test_tree_prints_every_artifact(metadata):
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(lineage_tree(trace(open_store(metadata["path"]), metadata["pushed"])))
    shown = console.export_text()
    assert all(kind in shown for kind in ("PushedModel", "Model", "Examples"))


def test_absent_metadata_is_one_error_and_makes_no_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        open_store(tmp_path / "absent.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_store_is_one_error(tmp_path):
    (tmp_path / "metadata.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(DataError, match="cannot be opened"):
        open_store(tmp_path / "metadata.sqlite")
