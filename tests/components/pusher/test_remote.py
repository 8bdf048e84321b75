"""Publishes to TensorFlow's in-memory file system, which, like an object store, cannot rename a folder atomically."""

import contextlib
import itertools
import uuid

import pytest
import tensorflow as tf

from components.pusher import object_store
from components.pusher.publish import publish
from components.pusher.served import damage_of, manifest_facts, served_versions
from embedding_core.errors import CheckpointError, ConfigError, ParityError


@pytest.fixture
def base():
    return f"ram://{uuid.uuid4().hex}/served"


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    for name, content in {"saved_model.pb": b"graph", "variables/data": b"\0" * 9000}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def passes(_):
    return {"why": 1}


def publish_at(model, base, second, **options):
    return publish(model, base, check=passes, clock=lambda: second, **options)


def test_file_that_makes_a_version_loadable_comes_last(model, base, monkeypatch):
    uploaded = []
    copy = tf.io.gfile.copy
    monkeypatch.setattr(
        tf.io.gfile, "copy", lambda source, target, **more: uploaded.append(target) or copy(source, target, **more)
    )
    publish_at(model, base, 100)
    assert uploaded[-1] == f"{base}/100/saved_model.pb"
    assert uploaded[0] == f"{base}/100/assets.extra/manifest.json"
    assert len(uploaded) == 3


def test_versions_increase_within_a_second_and_newest_are_kept(model, base):
    versions = [publish_at(model, base, 100, keep_last=2).version for _ in range(4)]
    assert versions == [100, 101, 102, 103]
    assert served_versions(base) == [102, 103]


def test_next_push_removes_the_half_version_of_a_dead_pusher(model, base):
    put(f"{base}/90/assets.extra/manifest.json", f"{base}/90/variables/data")
    publish_at(model, base, 100)
    assert served_versions(base) == [100]


def put(*paths):
    for path in paths:
        tf.io.gfile.makedirs(path.rpartition("/")[0])
        with tf.io.gfile.GFile(path, "w") as file:
            file.write("half")


@pytest.mark.parametrize("name", ["90/data.csv", "90"])
def test_what_is_not_a_version_is_never_removed(model, base, name):
    publish_at(model, base, 80)
    put(f"{base}/{name}")
    publish_at(model, base, 100)
    with pytest.raises(ConfigError, match=r"90' holds no 'saved_model\.pb', so it is not a version"):
        publish_at(model, base, 110, keep_last=1)
    assert tf.io.gfile.exists(f"{base}/{name}")


def test_empty_folders_of_a_dead_pusher_do_not_stop_the_next(model, base):
    tf.io.gfile.makedirs(f"{base}/90/assets.extra")
    publish_at(model, base, 100, keep_last=1)
    assert served_versions(base) == [100]


def test_file_removed_by_another_meanwhile_does_not_stop_a_push(model, base, monkeypatch):
    publish_at(model, base, 100)
    listed = object_store.file_names_below
    with monkeypatch.context() as patch:
        patch.setattr(object_store, "file_names_below", lambda folder: ["gone", *listed(folder)])
        publish_at(model, base, 200, keep_last=1)
    assert served_versions(base) == [200]


@pytest.mark.parametrize("removed", range(4))
def test_removal_that_died_is_finished_by_the_next_push(model, base, monkeypatch, removed):
    publish_at(model, base, 100)
    calls = itertools.count()

    def dies(call):
        def before(path):
            if next(calls) == removed:
                raise KeyboardInterrupt  # as nothing else stops a pusher at this point
            call(path)

        return before

    with monkeypatch.context() as patch:
        for name in ("remove", "rmtree"):
            patch.setattr(tf.io.gfile, name, dies(getattr(tf.io.gfile, name)))
        with contextlib.suppress(KeyboardInterrupt):
            publish_at(model, base, 200, keep_last=1)
    publish_at(model, base, 300, keep_last=1)
    assert served_versions(base) == [300]
    assert next(calls) == removed + 1


def test_failed_upload_leaves_nothing(model, base, monkeypatch):
    publish_at(model, base, 100)
    upload = object_store._upload

    def fails_at_the_last(path, target):
        if target.endswith("saved_model.pb"):
            raise OSError("the network")
        upload(path, target)

    monkeypatch.setattr(object_store, "_upload", fails_at_the_last)
    with pytest.raises(CheckpointError, match=r"could not be published below 'ram://.*the network"):
        publish_at(model, base, 200)
    assert served_versions(base) == [100]


def test_store_that_refuses_to_be_written_is_one_error(model, base, monkeypatch):
    def refuses(*_, **__):
        raise tf.errors.PermissionDeniedError(None, None, "storage.objects.create is denied")

    monkeypatch.setattr(tf.io.gfile, "copy", refuses)
    with pytest.raises(CheckpointError, match=r"create is denied.*the rights of this process"):
        publish_at(model, base, 100)


def test_failed_check_uploads_nothing(model, base):
    def refuses(_):
        raise ParityError("no")

    with pytest.raises(ParityError):
        publish(model, base, check=refuses)
    assert served_versions(base) == []


def test_damage_of_a_version_in_a_store_is_said(model, base):
    digest = publish_at(model, base, 100).digest
    assert damage_of(base, 100, digest) is None
    put(f"{base}/100/variables/data")
    assert "'variables/data' is not what its manifest says" in damage_of(base, 100, digest)
    tf.io.gfile.remove(f"{base}/100/assets.extra/manifest.json")
    assert "has no assets.extra/manifest.json" in damage_of(base, 100, digest)


def test_facts_are_read_and_a_folder_without_them_is_one_error(model, base):
    publish_at(model, base, 100)
    put(f"{base}/90/data.csv")
    assert manifest_facts(base, 100) == {"why": 1}
    with pytest.raises(ConfigError, match="cannot be read"):
        manifest_facts(base, 90)
