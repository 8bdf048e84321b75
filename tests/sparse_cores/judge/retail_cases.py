"""Writes the cases of Online Retail: the batches of one epoch, negatives included, and of one evaluation.

The rows are those of `examples/online_retail/prepare_data.py`. The history of a customer is a feature of many values.
"""

from __future__ import annotations

import collections
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from embedding_core.planning.topology import named_topology
from embedding_core.sparse_cores.training_limits import evaluated_batches, global_batches, sparse_core_limits
from embedding_core.training import Inputs, Negatives, TrainingConfig, TrainingJob
from embedding_core.training.device_choice import choose_placement
from embedding_core.training.job import JobData
from tests.sparse_cores.judge.cases import describe, write_batches
from tests.support.tf_examples import write_rows

_COLUMNS = ("CustomerID", "Country", "Period", "History", "StockCode")
_PREPARE = Path(__file__).parents[3] / "examples" / "online_retail" / "prepare_data.py"
_BATCH = 1024


def write_retail(folder: Path, data: Path, topologies: tuple[str, ...]) -> None:
    """Write a case of each topology; all of them name one file of batches."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, _PREPARE, data, scratch], check=True)
        job = _job(Path(scratch))
        drawn = JobData(job, choose_placement(job.training))
        size = drawn.rows_per_replica
        batches = [
            *global_batches(drawn, size),
            *evaluated_batches(job, named_topology(topologies[0]), size),
        ]
        write_batches(folder / "online_retail.npz", batches)
        for topology in topologies:
            limits = sparse_core_limits(job, named_topology(topology))
            assert limits is not None
            assert limits["batches"] + limits["batches_evaluated"] == len(batches)
            case = folder / f"{topology} online retail"
            case.mkdir()
            file = "../online_retail.npz"
            describe(case, job.inputs.config, topology, size, len(batches), limits["forms"], batches_file=file)


def _job(folder: Path) -> TrainingJob:
    """Write the rows as tf.Examples and the tokens as vocabularies, and make the job of one epoch."""
    splits = {
        name: pyarrow.parquet.read_table(folder / f"{name}.parquet", columns=[*_COLUMNS, "label"]).to_pydict()
        for name in ("train", "eval")
    }
    rows = splits["train"]
    tables, features, paths = [], [], {}
    for name in _COLUMNS:
        counts = collections.Counter(token for text in rows[name] if text for token in _tokens(name, text))
        tokens = [token for token, _ in counts.most_common()]
        paths[name] = str(folder / f"{name}.txt")
        Path(paths[name]).write_text("".join(f"{token}\n" for token in tokens))
        table = TableConfig(name=name, vocabulary_size=len(tokens), dim=64, vocabulary=name)
        tables.append(table.replace(optimizer=DEFAULT_OPTIMIZER))
        column = ColumnConfig(name=name, separator=" " if name == "History" else None)
        features.append(FeatureConfig(name=name, table=name, column=column))
    files = {name: str(folder / f"{name}.tfrecord") for name in splits}
    for name, path in files.items():
        values = zip(*splits[name].values(), strict=True)
        write_rows(path, (_row(dict(zip(splits[name], row, strict=True))) for row in values))
    negatives = Negatives(feature="StockCode", per_positive=1)
    training = TrainingConfig(
        epochs=1, batch_size=_BATCH, shuffle_buffer=400_000, early_stopping=None, negatives=negatives, strategy="cpu"
    )
    inputs = Inputs(
        config=EmbeddingConfig(tables=tuple(tables), features=tuple(features)),
        vocabularies=paths,
        raw_spec={"label": tf.io.FixedLenFeature([], tf.float32)},
        transform=lambda columns: columns,
    )
    return TrainingJob(
        inputs=inputs,
        training=training,
        model="pipelines.models.two_tower",
        train_files=[files["train"]],
        eval_files=[files["eval"]],
    )


def _tokens(name: str, text: str) -> list[str]:
    return text.split(" ") if name == "History" else [text]


def _row(columns: dict[str, Any]) -> dict[str, Any]:
    texts = {name: columns[name].encode() if columns[name] else None for name in _COLUMNS}
    return {**texts, "label": float(columns["label"])}
