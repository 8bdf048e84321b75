"""Makes a job with a table that two servers share: users of different tastes, most of them rare."""

import numpy as np
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from embedding_core.training import Inputs, TrainingConfig, TrainingJob
from tests.support.tf_examples import write_rows
from tests.support.vocabularies import write_tokens

USERS, ITEMS = 2000, 300
SIZES = {"items": ITEMS, "users": USERS}
TRAIN_FILES, TRAIN_ROWS, EVAL_ROWS = 4, 8_000, 4_000
SPEC = {"label": tf.io.FixedLenFeature([], tf.int64)}


def _rows(count, seed):
    """Rows whose label follows from a number of the user and one of the item."""
    tastes = np.random.default_rng(0)
    users, items = tastes.normal(size=USERS), tastes.normal(size=ITEMS)
    random = np.random.default_rng(seed)
    user = np.minimum(random.zipf(1.2, count) - 1, USERS - 1)
    item = random.integers(0, ITEMS, count)
    label = random.random(count) < 1 / (1 + np.exp(-1.5 * users[user] - 1.5 * items[item]))
    columns = zip(user, item, label, strict=True)
    return [{"user": b"u%d" % user, "item": b"i%d" % item, "label": int(label)} for user, item, label in columns]


def large_job(folder, **training):
    """Return the job; its files are written once."""
    train = [str(folder / f"large-{number}.gz") for number in range(TRAIN_FILES)]
    evaluated = [str(folder / "large-eval.gz")]
    if not (folder / "users.txt").exists():
        rows = _rows(TRAIN_ROWS, 1)
        for number, path in enumerate(train):
            write_rows(path, rows[number::TRAIN_FILES], "GZIP")
        write_rows(*evaluated, _rows(EVAL_ROWS, 2), "GZIP")
        tokens = {name: [f"{name[0]}{n}".encode() for n in range(size)] for name, size in SIZES.items()}
        write_tokens(folder, tokens)
    optimizer = DEFAULT_OPTIMIZER.replace(learning_rate=0.1)
    tables = tuple(
        TableConfig(name=name, vocabulary_size=size + 1, dim=8, vocabulary=name, oov_rows=1, optimizer=optimizer)
        for name, size in SIZES.items()
    )
    features = tuple(
        FeatureConfig(name=name, table=f"{name}s", column=ColumnConfig(name=name)) for name in ("user", "item")
    )
    inputs = Inputs(
        config=EmbeddingConfig(tables=tables, features=features),
        vocabularies={name: str(folder / f"{name}.txt") for name in SIZES},
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
