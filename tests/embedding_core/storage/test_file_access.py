"""Local files and files at an address such as ram:// behave the same."""

import os
import uuid

import pytest

from embedding_core.storage import (
    bounds,
    exists,
    file_digest,
    file_names_below,
    is_folder,
    make_folders,
    move,
    names_in,
    open_file,
    read_bounded,
    read_json,
    remove_tree,
    whole_file,
)


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"ram://{uuid.uuid4().hex}"


def write(path, text):
    with open_file(path, "w") as file:
        file.write(text)


def test_files_are_written_listed_read_moved_and_removed(folder):
    make_folders(f"{folder}/a/b")
    write(f"{folder}/a/b/rows", "1 2")
    write(f"{folder}/a/more", "3")
    assert file_names_below(f"{folder}/a") == ["b/rows", "more"]
    assert sorted(names_in(f"{folder}/a")) == ["b", "more"]
    assert file_digest(f"{folder}/a/more", copy_to=f"{folder}/a/copy") == file_digest(f"{folder}/a/copy")
    move(f"{folder}/a/more", f"{folder}/a/moved")
    assert (exists(f"{folder}/a/more"), exists(f"{folder}/a/moved"), is_folder(f"{folder}/a/b")) == (False, True, True)
    remove_tree(f"{folder}/a")
    remove_tree(f"{folder}/a")  # as if another process had been faster
    assert names_in(f"{folder}/a") == []


def test_missing_file_is_the_same_error(folder):
    with pytest.raises(FileNotFoundError), open_file(f"{folder}/missing") as file:
        file.read()


def test_whole_file_is_replaced(folder):
    make_folders(folder)
    for text in ("old", "new"):
        with whole_file(f"{folder}/rows") as half:
            write(half, text)
    with open_file(f"{folder}/rows", "r") as file:
        assert file.read() == "new"
    assert names_in(folder) == ["rows"]


def interrupted_write(path):
    with whole_file(path) as half:
        write(half, "ha")
        raise ValueError("interrupted")


def test_interrupted_whole_file_leaves_nothing(folder):
    make_folders(folder)
    with pytest.raises(ValueError, match="interrupted"):
        interrupted_write(f"{folder}/rows")
    assert names_in(folder) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", [file_digest, read_bounded, read_json])
def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(OSError, match="it is a named pipe, a socket or a device, not a regular file"):
            read(tmp_path / name)


def test_file_is_read_up_to_a_bound(folder):
    make_folders(folder)
    write(f"{folder}/a", "12345")
    assert read_bounded(f"{folder}/a", 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_bounded(f"{folder}/a", 4)


@pytest.mark.parametrize(("text", "words"), [("[" * 100_000, "nested too deep"), ("[1] " * 9, "more than 20 bytes")])
def test_json_beyond_a_bound_is_a_value_error(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr(bounds, "JSON_BYTES", 20 if "bytes" in words else bounds.JSON_BYTES)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_json(tmp_path / "a.json")
