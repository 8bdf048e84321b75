"""Version folders appear whole or not at all, in strictly increasing order."""

import datetime
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from components.pusher import publish as publishing
from components.pusher.publish import keep_newest, publish, roll_back, set_version_aside
from components.pusher.served import MANIFEST, copy_model, damage_of, find_published, served_versions, verify_version
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.storage import folder_digests, remove_leftovers, scratch_folder

pytestmark = pytest.mark.light


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    files = {"saved_model.pb": b"graph", "variables/data": b"\0" * 9000, "assets/v.txt": b"a\nb\n"}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def base(tmp_path):
    return tmp_path / "served"


def passes(path):
    assert os.path.exists(f"{path}/saved_model.pb")
    return {"why": 1}


def hidden(base):
    return [name for name in os.listdir(base) if name.startswith(".version.tmp-")]


def test_scratch_folder_with_a_copy_is_still_locked(model):
    with scratch_folder("push") as folder:
        copied = copy_model(model, folder)
        with scratch_folder("push"):  # this removes the folders that nobody has locked
            assert sorted(copied) == ["assets/v.txt", "saved_model.pb", "variables/data"]
            assert folder_digests(folder) == copied


def test_publish_copies_every_file_and_says_so(model, base):
    published = publish(model, base, check=passes, clock=lambda: 100.5)
    assert published.version == 100
    manifest = verify_version(published.path)
    assert sorted(manifest["files"]) == ["assets/v.txt", "saved_model.pb", "variables/data"]
    assert (manifest["digest"], manifest["facts"]) == (published.digest, {"why": 1})
    assert hidden(base) == []


def test_publish_clock_set_back_still_increases(model, base):
    assert [publish(model, base, check=passes, clock=lambda t=t: t).version for t in (100, 50, 101)] == [100, 101, 102]


def test_publish_never_takes_an_existing_name(model, base):
    (base / "100").mkdir(parents=True)
    (base / "101").write_text("junk")
    assert publish(model, base, check=passes, clock=lambda: 100).version == 102
    assert os.listdir(base / "100") == []


def test_publish_failed_check_leaves_everything_as_it_was(model, base):
    def fails(path):
        raise CheckpointError("no")

    publish(model, base, check=passes, clock=lambda: 100)
    with pytest.raises(CheckpointError):
        publish(model, base, check=fails)
    assert served_versions(base) == [100]
    assert hidden(base) == []


@pytest.mark.parametrize("where", ["ram://bucket/x", "x"])
def test_publish_refuses_to_keep_no_version(model, tmp_path, where):
    with pytest.raises(ConfigError):
        publish(model, where if "://" in where else tmp_path / where, check=passes, keep_last=0)


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/served"])
def test_publish_refuses_a_place_that_holds_no_versions(model, tmp_path, where):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot hold versions"):
        publish(model, tmp_path / where, check=passes)


def test_publish_refuses_what_is_no_saved_model(tmp_path, base):
    with pytest.raises(CheckpointError, match=r"no 'saved_model\.pb'"):
        publish(tmp_path, base, check=passes)
    assert not base.exists()


def test_publish_on_a_full_disk_leaves_everything_as_it_was(model, base, monkeypatch):
    publish(model, base, check=passes, clock=lambda: 100)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("components.pusher.publish.sync_tree", full)
    with pytest.raises(CheckpointError, match="No space left"):
        publish(model, base, check=passes)
    assert served_versions(base) == [100]
    assert hidden(base) == []


def test_publish_refuses_to_pass_the_largest_version(model, base):
    (base / str(2**63 - 1)).mkdir(parents=True)
    with pytest.raises(ConfigError, match="move that folder away"):
        publish(model, base, check=passes)


def flip_bit(version):
    data = (version / "variables/data").read_bytes()
    (version / "variables/data").write_bytes(bytes([data[0] ^ 1]) + data[1:])


def change_facts(version):
    text = (version / MANIFEST).read_text()
    (version / MANIFEST).write_text(text.replace('"why": 1', '"why": 2'))


def link_away(version):
    (version / "assets/v.txt").rename(version.parent / "v.txt")
    (version / "assets/v.txt").symlink_to(version.parent / "v.txt")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_bit, ""),
        (lambda version: (version / "assets/v.txt").unlink(), ""),
        (lambda version: (version / "assets/other.txt").write_text("x"), ""),
        (lambda version: (version / MANIFEST).write_text('{"files": {}}'), ""),
        (change_facts, "seal"),
        (link_away, "symbolic link"),
    ],
    ids=["changed", "deleted", "added", "manifest", "facts", "link"],
)
def test_verify_version_finds_damage(model, base, damage, words):
    path = Path(publish(model, base, check=passes).path)
    damage(path)
    with pytest.raises(CheckpointError, match=words):
        verify_version(path)


def test_copy_being_checked_is_spared_and_has_no_number(model, base):
    seen = []

    def check(path):
        seen.append((remove_leftovers(base), os.path.exists(path), os.path.basename(path)[:13], served_versions(base)))
        return {}

    publish(model, base, check=check)
    assert seen == [([], True, ".version.tmp-", [])]


CHILD = """
import sys
from components.pusher.publish import publish
for _ in range(8):
    print(publish(*sys.argv[1:], check=lambda path: {}, clock=lambda: 100).version)
"""


def test_publish_from_several_processes_at_once(model, base):
    command = [sys.executable, "-c", CHILD, str(model), str(base)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)]
    bad, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            for version in served_versions(base) if base.exists() else []:
                try:
                    verify_version(base / str(version))
                except CheckpointError as error:
                    bad.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    numbers = [int(line) for child in children for line in child.communicate()[0].split()]
    stop.set()
    watcher.join()
    assert sorted(numbers) == list(range(100, 116)) == served_versions(base)
    assert bad == []
    assert hidden(base) == []


def test_publish_refuses_a_model_with_links(model, base):
    (model / "assets/other.txt").symlink_to("/etc/hostname")
    with pytest.raises(CheckpointError, match="symbolic link"):
        publish(model, base, check=passes)
    assert served_versions(base) == hidden(base) == []


def test_roll_back_publishes_the_earlier_version_again(model, base, monkeypatch):
    first = publish(model, base, check=passes, clock=lambda: 100)
    (model / "saved_model.pb").write_bytes(b"other")
    publish(model, base, check=passes, clock=lambda: 200)
    moment = datetime.datetime(2011, 10, 1, 12, 30, tzinfo=datetime.timezone.utc)
    clock = SimpleNamespace(now=moment.astimezone)
    monkeypatch.setattr(publishing, "datetime", SimpleNamespace(datetime=clock, timezone=datetime.timezone))
    back = roll_back(base)
    assert back.digest == first.digest
    assert served_versions(base) == [100, 200, back.version]
    made = {"of": 100, "from": 200, "made": "2011-10-01T12:30:00+00:00"}
    assert verify_version(back.path)["facts"] == {"why": 1, "rollback": made}


def test_roll_back_to_a_copy_says_which_version_was_pushed(model, base):
    for second in (100, 200):
        publish(model, base, check=passes, clock=lambda second=second: second)
    copy = roll_back(base)
    publish(model, base, check=passes)
    again = roll_back(base, copy.version)
    assert verify_version(again.path)["facts"]["rollback"]["of"] == 100


def test_roll_back_is_readable_by_whom_the_earlier_version_was(model, base):
    before = os.umask(0o027)
    for second in (100, 200):
        publish(model, base, check=passes, clock=lambda second=second: second)
    os.umask(0o022)
    copy = Path(roll_back(base).path)
    assert os.umask(before) == 0o022  # roll_back restored the umask
    modes = {path.stat().st_mode & 0o777 for path in [copy, *copy.rglob("*")]}
    assert modes == {0o750, 0o640}


@pytest.mark.parametrize("to", [None, 100, 7])
def test_roll_back_refuses_what_is_not_there(model, base, to):
    publish(model, base, check=passes, clock=lambda: 100)
    with pytest.raises(ConfigError, match="the newest"):
        roll_back(base, to)


def test_roll_back_refuses_a_damaged_version(model, base):
    first = publish(model, base, check=passes)
    publish(model, base, check=passes)
    (Path(first.path) / "saved_model.pb").write_bytes(b"grapH")
    with pytest.raises(CheckpointError, match="damaged"):
        roll_back(base)
    assert len(served_versions(base)) == 2


def test_newest_versions_are_kept_and_removed_ones_said(model, base):
    for second in (1, 2, 3, 4):
        publish(model, base, check=passes, keep_last=3, clock=lambda t=second: t)
    assert served_versions(base) == [2, 3, 4]
    assert keep_newest(base, 1) == [2, 3]
    assert served_versions(base) == [4]
    assert hidden(base) == []


@pytest.mark.parametrize("other", ["2023/data.csv", "2023"])
def test_nothing_but_versions_is_removed(model, base, other):
    publish(model, base, check=passes, clock=lambda: 3000)
    (base / other).parent.mkdir(exist_ok=True)
    (base / other).write_text("mine")
    for removing in (lambda: keep_newest(base, 1), lambda: publish(model, base, check=passes, keep_last=1)):
        with pytest.raises(ConfigError, match=r"2023' holds no 'saved_model\.pb', so it is not a version"):
            removing()
    assert (served_versions(base), hidden(base)) == ([2023, 3000], [])
    assert (base / other).read_text() == "mine"


def test_version_whose_files_were_deleted_is_removed_too(model, base):
    publish(model, base, check=passes, clock=lambda: 1)
    (base / "1" / "saved_model.pb").unlink()
    (base / "2" / "variables").mkdir(parents=True)
    assert publish(model, base, check=passes, keep_last=1, clock=lambda: 3).version == 3
    assert served_versions(base) == [3]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_bit, "'variables/data' is not what its manifest says"),
        (lambda version: (version / "saved_model.pb").unlink(), "'saved_model.pb' is not what its manifest says"),
        (shutil.rmtree, "has no assets.extra/manifest.json"),
    ],
)
def test_damage_of_what_is_served_is_said(model, base, damage, words):
    published = publish(model, base, check=passes, clock=lambda: 7)
    assert damage_of(str(base), 7, published.digest) is None
    assert "not the model that was pushed" in damage_of(str(base), 7, "0" * 64)
    damage(base / "7")
    assert words in damage_of(str(base), 7, published.digest)


def test_newest_version_is_found_by_identity_while_unchanged(model, base):
    for number in (7, 8):
        publish(model, base, check=lambda _, number=number: {"identity": f"of {number}"}, clock=lambda n=number: n)
    found, facts = find_published(str(base), "of 8")
    assert (found.version, found.path, facts) == (8, f"{base}/8", {"identity": "of 8"})
    assert find_published(str(base), "of 7") is None  # version 8 is served
    (base / "8" / "saved_model.pb").unlink()
    assert find_published(str(base), "of 8") is None
    assert find_published(str(base / "absent"), "of 8") is None


def test_damaged_version_is_set_aside_where_no_server_takes_it(model, base):
    for number in (7, 8):
        publish(model, base, check=passes, clock=lambda number=number: number)
    assert set_version_aside(base, 7) == f"{base}/.damaged-7"
    assert served_versions(base) == [8]
    assert set_version_aside(base, 7) is None
    assert (base / ".damaged-7" / "saved_model.pb").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["assets/more", "saved_model.pb", MANIFEST])
def test_verify_version_does_not_wait_for_a_pipe(model, base, name):
    path = Path(publish(model, base, check=passes).path)
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with pytest.raises(CheckpointError, match=f"not a regular file: '.*{name}'"):
        verify_version(path)
