"""Makes a job with a table that two servers share: users of different tastes, most of them rare."""

import numpy as np
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from embedding_core.training import Inputs, TrainingConfig, TrainingJob

USERS, ITEMS = 2000, 300
TRAIN_FILES, TRAIN_ROWS, EVAL_ROWS = 4, 8_000, 4_000
SPEC = {"label": tf.io.FixedLenFeature([], tf.int64)}


def _row(user, item, label):
    features = {
        "user": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"u%d" % user])),
        "item": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"i%d" % item])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _write(paths, count, seed):
    """Write rows whose label follows from a number of the user and one of the item."""
    tastes = np.random.default_rng(0)
    users, items = tastes.normal(size=USERS), tastes.normal(size=ITEMS)
    random = np.random.default_rng(seed)
    user = np.minimum(random.zipf(1.2, count) - 1, USERS - 1)
    item = random.integers(0, ITEMS, count)
    label = random.random(count) < 1 / (1 + np.exp(-1.5 * users[user] - 1.5 * items[item]))
    writers = [tf.io.TFRecordWriter(path, "GZIP") for path in paths]
    for number in range(count):
        writers[number % len(writers)].write(_row(user[number], item[number], int(label[number])))
    for writer in writers:
        writer.close()


def large_job(folder, **training):
    """Return the job; its files are written once."""
    train = [str(folder / f"large-{number}.gz") for number in range(TRAIN_FILES)]
    evaluated = [str(folder / "large-eval.gz")]
    if not (folder / "users.txt").exists():
        (folder / "items.txt").write_text("".join(f"i{number}\n" for number in range(ITEMS)))
        _write(train, TRAIN_ROWS, 1)
        _write(evaluated, EVAL_ROWS, 2)
        (folder / "users.txt").write_text("".join(f"u{number}\n" for number in range(USERS)))
    optimizer = DEFAULT_OPTIMIZER.replace(learning_rate=0.1)
    tables = tuple(
        TableConfig(name=name, vocabulary_size=size + 1, dim=8, vocabulary=name, oov_rows=1, optimizer=optimizer)
        for name, size in (("users", USERS), ("items", ITEMS))
    )
    features = tuple(
        FeatureConfig(name=name, table=f"{name}s", column=ColumnConfig(name=name)) for name in ("user", "item")
    )
    inputs = Inputs(
        config=EmbeddingConfig(tables=tables, features=features),
        vocabularies={name: str(folder / f"{name}.txt") for name in ("users", "items")},
        raw_spec=SPEC,
        transform=lambda raw: {"label": raw["label"]},
    )
    rate = {"dense_optimizer": {"learning_rate": 0.005}}
    settings = {"epochs": 3, "batch_size": 128, "early_stopping": None, "shuffle_buffer": 2048, **rate, **training}
    return TrainingJob(
        inputs=inputs,
        training=TrainingConfig(**settings),
        model="pipelines.models.ranking",
        arguments={"hidden_units": [16], "dropout": 0.0},
        train_files=train,
        eval_files=evaluated,
    )
