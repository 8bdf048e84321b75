import json
import os
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.checkpoint import (
    latest_training_checkpoint,
    load_checkpoint_into,
    read_manifest,
    retrieve,
    table_shapes,
)
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import FTRL, SGD, AdagradMomentum, Adam, Optimizer
from embedding_core.storage import remove_leftovers, whole_folder
from embedding_core.vocabulary import Vocabulary, load_vocabulary
from tests.support.vocabularies import vocabulary_of


def items(size: int = 22) -> Vocabulary:
    return vocabulary_of([b"token %d" % i for i in range(size)], "item")


DIGESTS = {"item": items().digest}


def config(rows: int = 23, dim: int = 3, optimizer: Optimizer | None = None, name: str = "item") -> EmbeddingConfig:
    """Return a configuration of two tables, one with a dot in its name, which TensorFlow escapes in its keys."""
    item = TableConfig(
        name=name, vocabulary_size=rows, dim=dim, optimizer=optimizer or Adam(), vocabulary="item", oov_rows=1
    )
    raw = TableConfig(name="raw.ids", vocabulary_size=5, dim=2, optimizer=SGD())
    return EmbeddingConfig(
        tables=(item, raw), features=(FeatureConfig(name="f", table=name), FeatureConfig(name="g", table="raw.ids"))
    )


def variables(config: EmbeddingConfig, seed: int | None = 0) -> dict[str, tf.Variable]:
    random = np.random.default_rng(seed)
    make = np.zeros if seed is None else lambda shape: random.normal(size=shape)
    return {key: tf.Variable(make(shape).astype(np.float32)) for key, shape in table_shapes(config).items()}


def training_checkpoint(folder, tables: dict[str, tf.Variable]) -> str:
    step = tf.Variable(42, dtype=tf.int64)
    return tf.train.Checkpoint(embedding=tracked(tables), step=step).write(str(folder / "ckpt"))


def tracked(tables: dict[str, tf.Variable]) -> tf.Module:
    holder = tf.__internal__.tracking.AutoTrackable()
    for key, variable in tables.items():
        setattr(holder, key, variable)
    return holder


def take(tmp_path, tables=None, made=None, **kwargs) -> str:
    made = made or config()
    prefix = training_checkpoint(tmp_path, tables or variables(made))
    destination = str(tmp_path / "embedding")
    retrieve(prefix, made, destination, vocabularies={"item": items(made.tables[0].vocabulary_size - 1)}, **kwargs)
    return destination


def assert_equal(left: dict[str, tf.Variable], right: dict[str, tf.Variable]) -> None:
    assert left.keys() == right.keys()
    for key, variable in left.items():
        np.testing.assert_array_equal(variable.numpy(), right[key].numpy(), err_msg=key)


@pytest.mark.parametrize("slice_bytes", [1, 2**20])
def test_retrieve_then_load_gives_the_same_tables_and_slots(tmp_path, slice_bytes):
    trained, fresh = variables(config()), variables(config(), None)
    folder = take(tmp_path, trained, slice_bytes=slice_bytes)
    manifest = load_checkpoint_into(folder, fresh, config(), vocabulary_digests=DIGESTS, slice_bytes=slice_bytes)
    assert_equal(trained, fresh)
    assert (manifest.step, manifest.config, manifest.vocabularies) == (42, config(), DIGESTS)
    assert load_vocabulary(os.path.join(folder, "vocabularies"), "item").digest == DIGESTS["item"]


def test_checkpoint_saved_in_shards_is_read(tmp_path):
    trained, fresh = variables(config(rows=2001)), variables(config(rows=2001), None)
    policy = tf.train.experimental.MaxShardSizePolicy(4096)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    prefix = tf.train.Checkpoint(embedding=tracked(trained)).write(str(tmp_path / "ckpt"), options=options)
    manifest = retrieve(prefix, config(rows=2001), tmp_path / "out", vocabularies={"item": items(2000)})
    digests = {"item": items(2000).digest}
    load_checkpoint_into(tmp_path / "out", fresh, config(rows=2001), vocabulary_digests=digests)
    assert_equal(trained, fresh)
    assert manifest.step == 0


def test_latest_checkpoint_is_that_of_the_highest_step(tmp_path):
    for step in (5, 100, 20):
        (tmp_path / f"ckpt-{step}.index").touch()
    (tmp_path / "checkpoint").write_text("damaged")
    assert latest_training_checkpoint(tmp_path) == str(tmp_path / "ckpt-100")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        latest_training_checkpoint(tmp_path / "other")


def test_retrieve_names_missing_extra_and_reshaped_tables(tmp_path):
    tables = variables(config())
    del tables["item/velocities"]
    tables["old/slot"] = tf.Variable(tf.zeros([2, 2]))
    tables["raw.ids"] = tf.Variable(tf.zeros([6, 2]))
    with pytest.raises(CheckpointError) as caught:
        take(tmp_path, tables)
    for part in (
        "'item/velocities' is missing",
        "'old/slot' belongs to no configured table",
        "'raw.ids' is float32 [6, 2]",
    ):
        assert part in str(caught.value)
    assert not os.path.exists(tmp_path / "embedding")


def test_nonfinite_rows_are_refused_or_counted(tmp_path):
    tables = variables(config())
    tables["item"][3, 1].assign(np.nan)
    tables["item"][9, 0].assign(np.inf)
    with pytest.raises(CheckpointError, match="'item': 2 rows"):
        take(tmp_path, tables)
    assert not os.path.exists(tmp_path / "embedding")
    assert read_manifest(take(tmp_path, tables, nonfinite="keep")).nonfinite_rows == {"item": 2}


@pytest.mark.parametrize(
    ("vocabularies", "message"),
    [({}, "is not given"), ({"item": items(21)}, "has 21 tokens: it is not the one")],
)
def test_retrieve_without_the_vocabulary_of_the_rows_is_refused(tmp_path, vocabularies, message):
    prefix = training_checkpoint(tmp_path, variables(config()))
    with pytest.raises(CheckpointError, match=message):
        retrieve(prefix, config(), tmp_path / "out", vocabularies=vocabularies)


def test_retrieve_does_not_overwrite(tmp_path):
    take(tmp_path)
    with pytest.raises(CheckpointError, match="already holds files"):
        take(tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (config(rows=24), r"'item' has shape \[23, 3\] in the checkpoint instead of \[24, 3\]"),
        (config(optimizer=SGD()), "'item/momenta' of the checkpoint belongs to no configured table"),
        (config(name="items"), r"'items' is not in the checkpoint \(renamed from 'item' or 'item/momenta'"),
    ],
)
def test_load_refuses_other_tables_and_changes_nothing(tmp_path, other, message):
    fresh = variables(other, None)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint_into(take(tmp_path), fresh, other, vocabulary_digests=DIGESTS)
    assert all(not variable.numpy().any() for variable in fresh.values())


@pytest.mark.parametrize(
    ("old", "new"),
    [(AdagradMomentum(), AdagradMomentum(beta2=0.9)), (FTRL(learning_rate=0.1), FTRL(learning_rate=0.2))],
)
def test_load_refuses_slots_of_another_meaning(tmp_path, old, new):
    made, other = config(optimizer=old), config(optimizer=new)
    prefix = training_checkpoint(tmp_path, variables(made))
    retrieve(prefix, made, tmp_path / "out", vocabularies={"item": items()})
    with pytest.raises(CheckpointError, match="slots of 'item' are of"):
        load_checkpoint_into(tmp_path / "out", variables(other), other, vocabulary_digests=DIGESTS)


@pytest.mark.parametrize("digests", [{}, {"item": "b" * 64}])
def test_load_refuses_another_vocabulary(tmp_path, digests):
    with pytest.raises(CheckpointError, match="every token would read another token's row"):
        load_checkpoint_into(take(tmp_path), variables(config(), None), config(), vocabulary_digests=digests)


def test_load_without_slots_needs_the_tables_only(tmp_path):
    trained = variables(config())
    fresh = {key: value for key, value in variables(config(), None).items() if "/" not in key}
    load_checkpoint_into(take(tmp_path, trained), fresh, config(), vocabulary_digests=DIGESTS, slots=False)
    assert_equal(fresh, {key: trained[key] for key in fresh})


def test_manifest_of_a_later_version_is_refused(tmp_path):
    path = pathlib.Path(take(tmp_path), "manifest.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(CheckpointError, match="damaged"):
        read_manifest(path.parent)


def test_failed_write_leaves_nothing(tmp_path):
    def die_half_way():
        with whole_folder(tmp_path / "out") as folder:
            pathlib.Path(folder, "half").touch()
            raise KeyError

    with pytest.raises(KeyError):
        die_half_way()
    assert list(tmp_path.iterdir()) == []


def test_orphan_of_a_dead_write_is_swept_by_the_next(tmp_path):
    (tmp_path / f".9.tmp-{'a' * 32}").mkdir()  # left by a write to another destination in the same folder
    (tmp_path / "out").mkdir()  # an empty folder, such as an orchestrator creates
    with whole_folder(tmp_path / "out") as folder:
        pathlib.Path(folder, "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    module = sys.modules["embedding_core.storage.whole_folder"]
    monkeypatch.setattr(module, "put_in_place", lambda *_: (_ for _ in ()).throw(OSError("no rename")))
    with pytest.raises(CheckpointError, match="no rename"), whole_folder(tmp_path / "out", replace=True) as folder:
        pathlib.Path(folder, "new").touch()
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["old"]
    with whole_folder(tmp_path / "out", replace=True) as folder:
        pathlib.Path(folder, "new").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["out", "out/new"]


def test_folder_of_a_living_writer_is_not_swept(tmp_path):
    with whole_folder(tmp_path / "one") as folder:
        with whole_folder(tmp_path / "two"):
            assert os.path.isdir(folder)
        assert remove_leftovers(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


def test_engine_goes_on_from_what_another_has_trained(tmp_path):
    made = config()
    ids = {"f": tf.constant([1, 2]), "g": tf.constant([0, 4])}
    trained, fresh = HostEngine(made, seed=1), HostEngine(made, seed=2)
    trained.apply_gradients(ids, {"f": tf.ones([2, 3]), "g": tf.ones([2, 2])})
    prefix = tf.train.Checkpoint(embedding=trained.tables).write(str(tmp_path / "ckpt"))
    retrieve(prefix, made, tmp_path / "out", vocabularies={"item": items()})
    load_checkpoint_into(tmp_path / "out", fresh.table_variables, made, vocabulary_digests=DIGESTS)
    for engine in (trained, fresh):
        engine.apply_gradients(ids, {"f": tf.ones([2, 3]), "g": tf.ones([2, 2])})
    assert_equal(fresh.table_variables, trained.table_variables)


@pytest.mark.parametrize("place", ["/proc/out", "/proc/nowhere/out", "/dev/null/out"])
def test_folder_that_cannot_be_made_is_one_error(place):
    with pytest.raises(CheckpointError, match=rf"'{place}' cannot be written"), whole_folder(place):
        pass
