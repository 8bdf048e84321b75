# ruff: noqa: I001 (modules of the previous release: some names are gone)
"""Writes the files of this folder with the release that is imported: see README.md. Old code; not run by the tests.

cd <checkout of the previous release> && .venv/bin/python <this file> <new folder>
"""

import contextlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pyarrow as pa
import tensorflow as tf
from embedding_core.planner import plan_from_vocabularies
from embedding_core.vocabulary_evolution import evolved_vocabulary

from components.pusher.proof import prove
from components.pusher.publish import publish
from components.pusher.proof import Sources, load_trained
from components.pusher.executor import write_warmup
from embedding_core.checkpoint import load_checkpoint_into, retrieve
from embedding_core.config import ColumnConfig
from embedding_core.serving import DenseInputs, export_model
from embedding_core.training import EarlyStopping, Inputs, TrainingConfig, TrainingJob, train
from embedding_core.training.dense_start import DenseStart
from embedding_core.training.runs import RunDescription
from embedding_core.vocabulary import (
    FeatureSummary,
    load_vocabularies,
    save_set,
    save_vocabulary,
    vocabulary_from_counts,
)

ITEMS = [f"item {number}" for number in range(12)]
SCHEMA = """feature { name: "item" type: BYTES }
feature { name: "price" type: FLOAT }
feature { name: "label" type: INT }
"""
SPEC = {"price": tf.io.FixedLenFeature([], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}


def example(item, price, label):
    features = {
        "item": tf.train.Feature(bytes_list=tf.train.BytesList(value=[item.encode()])),
        "price": tf.train.Feature(float_list=tf.train.FloatList(value=[price])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def rows(count, seed):
    random = np.random.default_rng(seed)
    for _ in range(count):
        number = int(random.integers(len(ITEMS)))
        yield example(ITEMS[number], float(random.normal()), int(number % 2 == 0) if random.random() < 0.9 else 1)


def write_rows(path, count, seed):
    with tf.io.TFRecordWriter(path) as writer:
        for row in rows(count, seed):
            writer.write(row)


def write_vocabularies():
    """Write a vocabulary of ten items, and the vocabulary that evolves from it with a second run's counts."""
    tokens = pa.array([item.encode() for item in ITEMS], pa.large_binary())
    column = ColumnConfig(name="item")
    lengths = dict.fromkeys(("p50", "p90", "p95", "p99", "max"), 1)
    seen = {"column": column, "rows": 155, "missing": 0, "token_count": 155, "lengths": lengths}
    base = vocabulary_from_counts("item", tokens[:10], np.arange(20, 10, -1), features={"item": FeatureSummary(**seen)})
    counts = np.arange(30, 20, -1)
    features = {"item": FeatureSummary(**{**seen, "new_rows": 43, "new_tokens": 43})}
    evolved = evolved_vocabulary(
        base, tokens[2:], counts, mode="rerank", expire_after=3, min_count=2, features=features
    )
    for folder, vocabulary in (("base_vocabularies", base), ("vocabularies", evolved)):
        os.mkdir(folder)
        save_vocabulary(vocabulary, folder)
        save_set(folder, {"item": vocabulary.digest})


def job(config, *, start=None, **training):
    settings = {"epochs": 4, "batch_size": 32, "learning_rate": 0.01, "seed": 3, **training}
    digests = {name: vocabulary.digest for name, vocabulary in load_vocabularies("vocabularies").items()}

    def fill(variables):
        load_checkpoint_into(start, variables, config, vocabulary_digests=digests)

    return TrainingJob(
        inputs=Inputs(
            config=config,
            vocabularies={"item": "vocabularies/item.txt"},
            dense=("price",),
            label="label",
            raw_spec=SPEC,
        ),
        training=TrainingConfig(**settings),
        model="pipelines.models.ranking",
        arguments={"hidden_units": [4]},
        train_files=["examples/Split-train/data-00000-of-00001"],
        eval_files=["examples/Split-eval/data-00000-of-00001"],
        warm_start=fill if start else None,
        dense_start=DenseStart(folder=f"{start}/dense") if start else None,
    )


def describe(job, result, folder):
    vocabularies = load_vocabularies("vocabularies")
    description = RunDescription(
        model=job.model,
        arguments=job.arguments,
        config=job.inputs.config,
        training=job.training,
        dense=job.inputs.dense,
        label="label",
        weight=None,
        step=result.step,
        checkpoint=os.path.basename(result.checkpoint),
        vocabularies={name: vocabulary.digest for name, vocabulary in vocabularies.items()},
    )
    description.save(folder)
    return description


class StoppedError(Exception):
    pass


def stop(step, *_):
    if step >= 12:
        raise StoppedError


def push(evaluated):
    """Publish a version as EmbeddingPusher does."""
    names = {"model_run": "model_run", "vocabularies": "vocabularies", "table_configs": "table_configs"}
    trained = load_trained(Sources(**names, schema="schema"))
    with tempfile.TemporaryDirectory() as folder:
        trained.export(folder)
        write_warmup(folder, trained.requests(trained.synthetic_rows(4)))
        eval_rows = list(rows(40, 2))

        def check(copy):
            proof = prove(copy, evaluated, trained, eval_rows, 1e-5)
            assert proof.report.passed
            sources = {**names, "transform_graph": None, "schema": "schema", "evaluated": "model", "examples": []}
            vocabularies = dict(trained.digests)
            return {"parity": proof.to_dict(), "vocabularies": vocabularies, "sources": sources, "identity": "one"}

        return publish(folder, "serving", check=check, clock=lambda: 1790000000)


def main(folder):
    os.makedirs(folder)
    os.chdir(folder)
    for split, count, seed in (("train", 120, 1), ("eval", 40, 2)):
        os.makedirs(f"examples/Split-{split}")
        write_rows(f"examples/Split-{split}/data-00000-of-00001", count, seed)
    write_vocabularies()
    features = [{"name": "item", "vocabulary": "item", "column": {"name": "item"}}]
    config = plan_from_vocabularies(features, load_vocabularies("vocabularies"))
    os.mkdir("table_configs")
    pathlib.Path("table_configs/embedding_config.json").write_bytes(config.to_sealed_json())
    os.mkdir("schema")
    pathlib.Path("schema/schema.pbtxt").write_text(SCHEMA)

    first = job(config)
    result = train(first, "model_run")
    describe(first, result, "model_run")
    shutil.rmtree("model_run/logs")
    model = tempfile.mkdtemp()
    sources = {"tables": result.tables, "vocabularies": first.inputs.vocabularies, "model": result.model}
    dense = DenseInputs(names=("price",), spec={"price": SPEC["price"]})
    export_model(model, config=config, **sources, dense=dense)
    vocabularies = load_vocabularies("vocabularies")
    retrieve(result.checkpoint, config, "embedding_checkpoint", vocabularies=vocabularies, dense="model_run/dense")

    second = job(
        config,
        start="embedding_checkpoint",
        eval_every=5,
        checkpoint_every=5,
        early_stopping=EarlyStopping(metric="loss", validation_fraction=0.2, patience=9),
    )
    whole = train(second, tempfile.mkdtemp())
    with contextlib.suppress(StoppedError):
        train(second, tempfile.mkdtemp(), resume_folder="series", progress=stop)

    pushed = push(model)
    serving = tf.saved_model.load(pushed.path)
    logits = serving.signatures["serving_default"](tf.constant(list(rows(40, 2))))["logit"].numpy()
    first_reader, whole_reader = (tf.train.load_checkpoint(run.checkpoint) for run in (result, whole))
    key = "embedding/item{}/.ATTRIBUTES/VARIABLE_VALUE"
    expected = {"logits": logits}
    for name, reader in (("trained", first_reader), ("continued", whole_reader)):
        expected[f"{name}/item"] = reader.get_tensor(key.format(""))
        expected[f"{name}/item/accumulators"] = reader.get_tensor(key.format(".Saccumulators"))
    np.savez_compressed("expected.npz", **expected)
    facts = {
        "model_run/step": result.step,
        "continued/step": whole.step,
        "continued/evals": [entry["auc"] for entry in whole.history.evals],
        "digests": {name: load_vocabularies(name)["item"].digest for name in ("base_vocabularies", "vocabularies")},
        "tokens": vocabularies["item"].tokens.to_pylist(),
        "idle": vocabularies["item"].evolution.idle.tolist(),
        "version": {"number": pushed.version, "digest": pushed.digest},
        "config": json.loads(config.to_json()),
    }
    text = json.dumps(facts, indent=1, default=bytes.decode) + "\n"
    pathlib.Path("expected.json").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
