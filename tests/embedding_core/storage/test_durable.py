import os

import pytest

from embedding_core.storage import free_name, sync_tree, whole_file

pytestmark = pytest.mark.light


def test_free_name_is_one_that_not_even_a_broken_link_has(tmp_path):
    path = str(tmp_path / "store.replaced")
    assert free_name(path) == path
    os.symlink(tmp_path / "missing", path)
    (tmp_path / "store.replaced.1").touch()
    assert free_name(path) == f"{path}.2"


def test_folder_is_brought_to_the_disk_after_what_it_lists(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "rows").touch()
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(os.readlink(f"/proc/self/fd/{handle}")))
    sync_tree(tmp_path)
    assert seen == [f"{tmp_path}/inner/rows", f"{tmp_path}/inner", str(tmp_path)]


def test_file_whose_writing_fails_stays_as_it_was(tmp_path):
    (tmp_path / "rows").write_text("old")
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "rows") as half:
        os.mkdir(f"{half}/missing/folder")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("rows", "old")]
