"""Tests that a node never reads an input that differs from what was published, on pipelines of three nodes.

Damage is found even if a file keeps its size and modification time.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from embedding_core.errors import DataError
from tests.support.metadata import sqlite_connection, sqlite_store

pytestmark = pytest.mark.tfx


class Pipeline:
    """Three nodes that pass a text on; the last one appends `again` to it.

    If `imported` is given, the first node is an Importer of that folder.
    """

    def __init__(self, folder, imported=None):
        self.folder, self.imported, self.said, self.runs = folder, imported, [], []

    def run(self, again=""):
        from tfx import v1 as tfx

        from components import Vocabularies
        from pipelines.local.metadata_repair import repair_metadata
        from pipelines.local.runner import ReportingDagRunner
        from tests.pipelines.small_nodes import First, Joined

        repair_metadata(self.store(), "demo", f"{self.folder}/artifacts")
        first = First(text="as ever")
        if self.imported:
            first = tfx.dsl.Importer(source_uri=str(self.imported), artifact_type=Vocabularies).with_id("First")
        read = first.outputs["result" if self.imported else "made"]
        second = Joined(read=read, text="").with_id("Second")
        third = Joined(read=second.outputs["made"], text=again).with_id("Third")
        nodes = tfx.dsl.Pipeline(
            "demo", f"{self.folder}/artifacts", components=[first, second, third], enable_cache=True,
            metadata_connection_config=sqlite_connection(f"{self.folder}/metadata.sqlite"),
        )  # fmt: skip
        self.runs.append([])
        runner = ReportingDagRunner(self.runs[-1].append, self.said.append)
        runner.run(nodes)
        return {run.node: run.state for run in runner.nodes}

    def store(self):
        return sqlite_store(f"{self.folder}/metadata.sqlite")

    def newest(self, node):
        return max((self.folder / "artifacts" / node / "made").glob("*[0-9]"), key=lambda path: int(path.name))


@pytest.fixture
def pipeline(tmp_path):
    return Pipeline(tmp_path)


def flip(path):
    """Damage a file, but keep its size and times."""
    before = path.stat()
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_damaged_input_is_set_aside_and_made_again_before_use(pipeline):
    assert set(pipeline.run().values()) == {"executed"}
    good = (pipeline.newest("Third") / "text").read_text()
    damaged = pipeline.newest("Second")
    flip(damaged / "text")
    assert set(pipeline.run().values()) == {"cached"}  # no node runs, so none reads it
    assert pipeline.run(again="again") == {"First": "cached", "Second": "executed", "Third": "executed"}
    assert (pipeline.newest("Third") / "text").read_text() == good + "again"
    assert pipeline.said == [f"{damaged} is damaged: it is set aside, and made again"]
    assert Path(f"{damaged}.damaged").is_dir()
    assert pipeline.run(again="again") == {"First": "cached", "Second": "cached", "Third": "cached"}


def test_every_input_is_read_once_in_a_run(pipeline, monkeypatch):
    from pipelines.local import runner

    read, check = [], runner.is_as_recorded
    monkeypatch.setattr(
        runner, "is_as_recorded", lambda uri, *rest, **how: read.append(uri) or check(uri, *rest, **how)
    )
    pipeline.run()
    assert read == [str(pipeline.newest("First")), str(pipeline.newest("Second"))]


def test_input_damaged_whenever_it_is_made_ends_in_one_error(pipeline, monkeypatch):
    from pipelines.local import runner

    pipeline.run()
    monkeypatch.setattr(runner, "is_as_recorded", lambda uri, *_, **__: "/Second/" not in uri)
    with pytest.raises(DataError, match="check the disk"):
        pipeline.run(again="again")
    assert len(pipeline.said) == 2


def test_damaged_folder_of_the_user_is_an_error_and_stays(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "text").write_text("mine")
    pipeline = Pipeline(tmp_path / "work", imported=mine)
    (tmp_path / "work").mkdir()
    pipeline.run()
    flip(mine / "text")
    (tmp_path / "work" / "artifacts" / "Second" / "made" / "2" / "text").unlink()  # so that Second reads it again
    with pytest.raises(DataError, match="is damaged: its files are not those that were imported"):
        pipeline.run()
    assert [path.name for path in mine.iterdir()] == ["text"]
    (mine / "text").write_text("replaced")
    assert pipeline.run() == {"First": "cached", "Second": "executed", "Third": "executed"}


def test_damaged_earlier_output_is_set_aside_and_is_one_error(tmp_path):
    earlier = Pipeline(tmp_path)
    earlier.run()
    base = earlier.newest("Third")
    later = Pipeline(tmp_path, imported=base)  # like a warm start from a run of the same pipeline
    later.run(again="tomorrow")
    flip(base / "text")
    later.newest("Second").joinpath("text").unlink()  # so that Second reads `base` again
    with pytest.raises(DataError, match="damaged, and was set aside: this run starts from it") as error:
        later.run(again="tomorrow")
    assert str(base) in str(error.value)
    assert later.said == []
    assert Path(f"{base}.damaged").is_dir()
    # Later runs fail too: otherwise TFX would run a node without this input if it were optional.
    for again in "tomorrow", "the day after":
        with pytest.raises(DataError, match="damaged, and was set aside: this run starts from it"):
            later.run(again=again)
    shutil.copytree(f"{base}.damaged", base)
    flip(base / "text")
    assert later.run(again="the day after")["Third"] == "executed"
    shutil.rmtree(base)
    assert earlier.run()["Third"] == "executed"


def test_run_killed_after_a_publication_leaves_output_recorded(pipeline, monkeypatch):
    from pipelines.local import runner
    from pipelines.local.metadata_repair import CONTENT

    pipeline.store()
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(runner, "_published", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        pipeline.run()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (artifact,) = pipeline.store().get_artifacts()
    assert artifact.state == mlmd.Artifact.LIVE
    assert CONTENT in artifact.custom_properties


def test_lost_or_restored_store_mixes_no_old_outputs_with_new(pipeline):
    store = f"{pipeline.folder}/metadata.sqlite"
    pipeline.run()
    (pipeline.newest("Second") / "token").write_text("of a feature that is removed")
    os.remove(store)
    assert set(pipeline.run().values()) == {"executed"}
    assert [path.name for path in pipeline.newest("Second").iterdir()] == ["text"]
    assert len(list((pipeline.folder / "artifacts.lost").rglob("token"))) == 1
    backup = shutil.copy(store, f"{store}.backup")
    pipeline.run(again="of a lost run")
    shutil.copy(backup, store)
    assert pipeline.run(again="now") == {"First": "cached", "Second": "cached", "Third": "executed"}
    assert (pipeline.newest("Third") / "text").read_text() == "as evernow"
    assert (pipeline.folder / "artifacts.lost.1").is_dir()
