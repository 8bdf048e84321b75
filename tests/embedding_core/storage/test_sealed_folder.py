"""A sealed folder is read as it was written, or not at all."""

import os

import pytest

from embedding_core.errors import CheckpointError
from embedding_core.storage import SealedFolder, bounds, file_digest

KIND = SealedFolder(constants={"format": "rows", "version": 1})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/rows").write_text("1 2 3")
    KIND.write(tmp_path, {"step": 7})
    return tmp_path


def test_manifest_has_facts_constants_and_digests(folder):
    files = {"inner/rows": file_digest(folder / "inner/rows")}
    assert KIND.verify(folder) == {"format": "rows", "version": 1, "step": 7, "files": files}


@pytest.mark.parametrize("text", ["1 2 4", "1 2", None])
def test_changed_or_missing_file_is_named(folder, text):
    (folder / "inner/rows").unlink() if text is None else (folder / "inner/rows").write_text(text)
    with pytest.raises(CheckpointError, match="'inner/rows' is not what its manifest says"):
        KIND.verify(folder)


def test_extra_file_is_refused_on_request(folder):
    (folder / "other").touch()
    assert KIND.verify(folder)["step"] == 7
    with pytest.raises(CheckpointError, match="'other' is not what its manifest says"):
        KIND.verify(folder, KIND.digests)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 100_000, b'{"files": {}}'])
def test_damaged_manifest_is_one_error(folder, data):
    (folder / "manifest.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"manifest\.json' is damaged"):
        KIND.read(folder)


def test_missing_manifest_and_another_kind_of_folder_are_refused(folder):
    with pytest.raises(CheckpointError, match=r"`format` of .* is 'rows': it must be 'other'"):
        SealedFolder(constants={"format": "other"}).read(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no manifest\.json: it is not a complete checkpoint"):
        KIND.verify(folder)


def test_spelling_of_the_manifest_is_that_of_its_kind(tmp_path):
    (tmp_path / "rows").write_text("1")
    kind = SealedFolder(manifest="extra/about.json", seal="seal", size="bytes")
    kind.write(tmp_path, {})
    assert kind.verify(tmp_path, kind.digests)["files"]["rows"]["bytes"] == 1
    assert kind.exists(tmp_path)
    assert not KIND.exists(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["inner/rows", "manifest.json", "other"])
def test_pipe_is_an_error_and_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=f"cannot be read .*not a regular file: '.*{name}'"):
        KIND.verify(folder, KIND.digests)


def test_manifest_beyond_the_bound_is_damaged(folder, monkeypatch):
    monkeypatch.setattr(bounds, "JSON_BYTES", 50)
    with pytest.raises(CheckpointError, match=r"manifest.json' is damaged \(it has more than 50 bytes"):
        KIND.read(folder)
