"""Files that earlier commits wrote are read by today's code as the same numbers: see README.md beside this file."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from components.pusher.served import find_published, served_versions, verify_version
from embedding_core.checkpoint import load_checkpoint_into, retrieve, verify
from embedding_core.engines import HostEngine
from embedding_core.serving_config import ROWS_DTYPES
from embedding_core.vocabulary import load_vocabularies, save_vocabulary

TESTS = Path(__file__).parents[1]
WRITTEN = sorted(path.parent.name for path in (TESTS / "compatibility/data").glob("*/files.tar.xz"))
FORMAT = re.compile(r'"format": "([a-z-]+)", "version": (\d+)')


@pytest.fixture(scope="module", params=WRITTEN)
def written(request, tmp_path_factory):
    """The folder of one commit's files."""
    return unpacked(request.param, tmp_path_factory.mktemp(request.param))


def unpacked(name, folder):
    with tarfile.open(TESTS / f"compatibility/data/{name}/files.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def expected(written, group):
    """The arrays of a group, by the rest of their names."""
    with np.load(written / "expected.npz") as arrays:
        return {name.removeprefix(f"{group}/"): arrays[name] for name in arrays.files if name.startswith(f"{group}/")}


def layouts_of(written):
    return sorted(path.parent.name for path in written.glob("*/ckpt.index"))


def assert_tables(written, checkpoint, config, digests):
    variables = HostEngine(config).table_variables
    load_checkpoint_into(checkpoint, variables, config, vocabulary_digests=digests)
    rows = expected(written, "tables")
    assert set(rows) == set(variables)
    for key, variable in variables.items():
        np.testing.assert_array_equal(variable.numpy(), rows[key], err_msg=f"{checkpoint} {key}")


def test_embedding_checkpoint_verifies_and_fills_an_engine(written):
    manifest = verify(written / "embedding_checkpoint")
    assert_tables(written, written / "embedding_checkpoint", manifest.config, manifest.vocabularies)


def test_training_checkpoint_of_every_layout_is_retrieved(written, tmp_path):
    manifest = verify(written / "embedding_checkpoint")
    vocabularies = load_vocabularies(written / "embedding_checkpoint/vocabularies")
    layouts = layouts_of(written)
    assert "host" in layouts
    for layout in layouts:
        retrieve(str(written / layout / "ckpt"), manifest.config, tmp_path / layout, vocabularies=vocabularies)
        assert_tables(written, tmp_path / layout, manifest.config, manifest.vocabularies)


def test_host_engine_restores_training_checkpoint_of_each_layout(written):
    config, rows = verify(written / "embedding_checkpoint").config, expected(written, "tables")
    for layout in layouts_of(written):
        engine = HostEngine(config)
        engine.build()
        tf.train.Checkpoint(embedding=engine.tables).read(str(written / layout / "ckpt")).assert_consumed()
        for key, variable in engine.table_variables.items():
            np.testing.assert_array_equal(variable.numpy(), rows[key], err_msg=f"{layout} {key}")


def test_version_verifies_is_recognized_and_answers(written):
    examples = tf.constant([example.tobytes() for example in expected(written, "examples").values()])
    bases = sorted(written.glob("served_*"))
    assert bases
    for base in bases:
        (number,) = served_versions(base)
        version = base / str(number)
        assert verify_version(version)["facts"] == {"identity": "one"}
        assert find_published(str(base), "one")[0].version == number
        answers = tf.saved_model.load(str(version)).signatures["serving_default"](examples)
        wanted = expected(written, f"answers/{base.name.removeprefix('served_')}")
        assert set(answers) == set(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(answers[name], value, rtol=1e-6, atol=1e-7)


def formats_of_today():
    """Name and number of each format that the shipped packages state."""
    found = set()
    for package in ("embedding_core", "components", "pipelines"):
        for source in (TESTS.parent / package).rglob("*.py"):
            found.update((name, int(number)) for name, number in FORMAT.findall(source.read_text(encoding="utf-8")))
    return found


@pytest.fixture(scope="module")
def formats_written(tmp_path_factory):
    """Name and number of each format of which there are files of earlier commits."""
    folders = [unpacked(name, tmp_path_factory.mktemp(name)) for name in WRITTEN]
    manifests = [path for folder in [*folders, TESTS / "data"] for path in folder.rglob("manifest.json")]
    found = [json.loads(path.read_text()) for path in manifests]
    return {(file["format"], file["version"]) for file in found if "format" in file}


def test_every_format_number_up_to_today_has_files(formats_written):
    today = formats_of_today()
    assert {name for name, _ in today} >= {"embedding-checkpoint", "training-checkpoint", "dense-part"}
    missing = {(name, number) for name, last in today for number in range(1, last + 1)} - formats_written
    assert not missing, f"add files of {sorted(missing)}, written by a commit that had the format (README.md)"


def test_there_are_versions_of_every_type_of_rows(tmp_path):
    found = {base.name for name in WRITTEN for base in unpacked(name, tmp_path / name).glob("served_*")}
    assert found == {f"served_{dtype}" for dtype in ROWS_DTYPES}


def test_files_of_a_vocabulary_have_todays_bytes(tmp_path):
    then = unpacked("1bd8e93", tmp_path / "then") / "embedding_checkpoint/vocabularies"
    (tmp_path / "now").mkdir()
    for vocabulary in load_vocabularies(then).values():
        save_vocabulary(vocabulary, tmp_path / "now")
    written = {path.name: path.read_bytes() for path in (tmp_path / "now").iterdir()}
    assert len(written) >= 3
    assert written == {name: (then / name).read_bytes() for name in written}
