"""Scratch folders are private, and removed at the end, or by the next process if their own was killed."""

import os
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

from embedding_core.storage import scratch_folder, scratch_tempdir

pytestmark = pytest.mark.light

HOLD = """
import sys
from embedding_core.storage import scratch_folder
with scratch_folder("score") as folder:
    open(folder + "/rows", "w").write("data")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def holder():
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_scratch_folder_is_private_and_gone_after_the_block(place):
    with scratch_folder("score") as folder:
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert list(place.iterdir()) == []


def test_next_process_removes_scratch_folder_of_a_killed_one(place):
    process, folder = holder()
    with scratch_folder("other"):
        assert os.path.exists(folder)  # its process lives
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.path.exists(folder)
    with scratch_folder("other"):
        assert not os.path.exists(folder)


def test_scratch_folder_leaves_other_names_and_links_alone(place):
    (place / "mine").mkdir()
    (place / "target").mkdir()
    (place / "tfx-embeddings-link").symlink_to(place / "target")
    with scratch_folder("score"):
        pass
    assert sorted(path.name for path in place.iterdir()) == ["mine", "target", "tfx-embeddings-link"]


def test_temporary_files_of_a_scratch_tempdir_go_with_it(place):
    with scratch_tempdir("run") as folder:
        inside = tempfile.mkdtemp()
        child = subprocess.check_output([sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"], text=True)
        assert os.path.dirname(inside) == os.path.dirname(child.strip()) == folder
    assert list(place.iterdir()) == []
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(place)
