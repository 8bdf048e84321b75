"""Makes small training jobs: a word of 8, a number, and a label; and compares what trainings saved."""

import dataclasses

import numpy as np
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from embedding_core.training import Inputs, TrainingConfig, TrainingJob
from tests.support.tf_examples import example, write_rows

WORDS = [f"w{number}" for number in range(8)]
WITHOUT_DROPOUT = {"hidden_units": [8], "cross_layers": 0, "dropout": 0.0}  # arguments of the model
SPEC = {"number": tf.io.VarLenFeature(tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}


def transform(raw):
    number = tf.sparse.to_dense(raw["number"], default_value=0.0)[:, :1]
    return {"number": number, "label": raw["label"]}


def row(word, number, label):
    return example({"word": word.encode(), "number": float(number), "label": label})


def rows(count, seed, labels=(0, 1)):
    """Rows whose label is the parity of their word's number, except for about one in ten."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        word = random.integers(len(WORDS))
        label = word % 2 if random.random() < 0.9 else 1 - word % 2
        yield row(WORDS[word], random.normal(), labels[label])


def numbered(first, last):
    """Rows whose `number` counts from `first` to `last`; their words and labels take turns."""
    return [row(f"w{number % 7}", number, number % 2) for number in range(first, last + 1)]


def job_in(folder, train_rows=None, *, table=None, **training):
    """A small job; its files are written only if their rows are given or the files are missing."""
    (folder / "word.txt").write_text("".join(word + "\n" for word in WORDS[:-1]))
    files = [folder / "train-0.gz", folder / "train-1.gz", folder / "eval.gz"]
    if train_rows is not None or not files[-1].exists():
        train_rows = list(rows(300, 1)) if train_rows is None else train_rows
        half = len(train_rows) // 2
        for path, part in zip(files, [train_rows[:half], train_rows[half:], rows(200, 2)], strict=True):
            write_rows(path, part, "GZIP")
    table = {"optimizer": DEFAULT_OPTIMIZER.replace(learning_rate=0.2), **(table or {})}
    words = TableConfig(name="words", vocabulary_size=8, dim=4, vocabulary="word", oov_rows=1, **table)
    feature = FeatureConfig(name="word", table="words", column=ColumnConfig(name="word"))
    inputs = Inputs(
        config=EmbeddingConfig(tables=(words,), features=(feature,)),
        vocabularies={"word": str(folder / "word.txt")},
        dense=("number",),
        raw_spec=SPEC,
        transform=transform,
    )
    rate = {"dense_optimizer": {"learning_rate": 0.01}}
    settings = {"epochs": 4, "batch_size": 32, "early_stopping": None, **rate, **training}
    return TrainingJob(
        inputs=inputs,
        training=TrainingConfig(**settings),
        model="pipelines.models.ranking",
        arguments={"hidden_units": [8], "cross_layers": 0, "dropout": 0.2},
        train_files=[str(path) for path in files[:2]],
        eval_files=[str(files[2])],
    )


def rows_of_lists(count, seed, *, positives=False):
    """Rows with missing and unknown words, up to 40 tags, and ids beyond 32 bits."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        tags = random.integers(0, 10, random.choice([0, 1, 3, 40]))
        yield example(
            {
                "word": b"w%d" % random.integers(12) if random.random() < 0.8 else None,
                "tags": [b"w%d" % tag for tag in tags],
                "ids": random.choice([-1, 0, 5, 2**40, -(2**50)], random.integers(0, 4)).tolist(),
                "number": random.normal(),
                "label": 1 if positives else int(random.integers(2)),
            }
        )


def job_of_lists(folder, *, wide=True, positives=False, **training):
    """A job of three files, one of them empty, with a feature of several tokens; `wide`: and one of 64-bit ids."""
    job = job_in(folder, **training)
    files = [
        write_rows(folder / f"part-{number}.gz", rows_of_lists(size, number, positives=positives), "GZIP")
        for number, size in enumerate((70, 0, 45))
    ]
    eval_files = [write_rows(folder / "some.gz", rows_of_lists(50, 99, positives=positives), "GZIP")]
    tables = [*job.inputs.config.tables]
    tables.append(TableConfig(name="dropping", vocabulary_size=7, dim=4, vocabulary="word", oov_rows=0))
    tags = ColumnConfig(name="tags", multivalent=True)
    features = [*job.inputs.config.features, FeatureConfig(name="tags", table="dropping", column=tags)]
    if wide:
        tables.append(TableConfig(name="plain", vocabulary_size=9, dim=4))
        column = ColumnConfig(name="ids", dtype="int64", multivalent=True)
        features.append(FeatureConfig(name="ids", table="plain", column=column, invalid_id="drop"))
    inputs = dataclasses.replace(job.inputs, config=EmbeddingConfig(tables=tuple(tables), features=tuple(features)))
    return dataclasses.replace(job, inputs=inputs, train_files=files, eval_files=eval_files)


def rows_by_host(batches, strategy, steps):
    """Return the `number` of every row of nonzero weight by host, and the number of rows that each batch reports."""
    hosts, said = [[] for _ in range(strategy.hosts)], []
    for _, batch in zip(range(steps), batches, strict=False):
        columns = (batch["dense"]["number"], batch["weight"], batch["rows"])
        parts = list(zip(*map(strategy.experimental_local_results, columns), strict=True))
        for core, (numbers, weights, _) in enumerate(parts):
            hosts[core // strategy.cores_per_host] += numbers.numpy()[weights.numpy() > 0].tolist()
        said.append(sum(int(count) for *_, count in parts) // strategy.cores_per_host)
    return hosts, said


def state_of(result):
    return state_at(result.checkpoint)


def state_at(checkpoint):
    """Read all values of a checkpoint, by key."""
    reader = tf.train.load_checkpoint(checkpoint)
    keys = [key for key in reader.get_variable_to_shape_map() if key != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {key: reader.get_tensor(key) for key in keys if "save_counter" not in key}


def assert_same(first, second):
    """Compare two states bit for bit."""
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], err_msg=key)


def assert_close(first, second):
    """Compare the states and figures of two results, within rounding."""
    state, other = state_of(first), state_of(second)
    assert state.keys() == other.keys()
    for key, value in state.items():
        np.testing.assert_allclose(value, other[key], rtol=2e-4, atol=2e-5, err_msg=key)
    losses = [[entry["loss"] for entry in result.history.train] for result in (first, second)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    np.testing.assert_allclose(first.history.evals[-1]["auc"], second.history.evals[-1]["auc"], rtol=1e-4)
