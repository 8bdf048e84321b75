"""EmbeddingPusher pushes what changed as a delta if it can, else a whole version; a client applies deltas."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils
from tfx.types import standard_artifacts

from components.deltas.client import apply_chain, newest_chain
from components.pusher.served import served_versions
from components.transform_graph import open_transform_graph
from embedding_core.config import EmbeddingConfig
from embedding_core.deltas.content import Delta
from embedding_core.deltas.export import DeltaExport
from embedding_core.deltas.protocol import DeltaError
from embedding_core.deltas.served_state import read_state
from embedding_core.engines import HostEngine
from embedding_core.model_inputs import build_model
from embedding_core.serving import export_model
from pipelines.pipeline.run_target import IN_PROCESS
from tests.components.pusher import test_pusher as pushing
from tests.components.pusher.test_pusher import (
    PRICE,
    SCHEMA,
    artifact,
    push,
    vocabulary,
)
from tests.support.artifacts import inputs_of
from tests.support.finished_runs import write_run

pytestmark = pytest.mark.tfx

SECRET = "a secret of the tests"
DELTAS = json.dumps({"max_share": 2.0})
MODEL = "pipelines.models.ranking"


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("TFX_EMBEDDINGS_DELTA_SECRET", SECRET)


def config_of(tokens):
    table = pushing.CONFIG.tables[0].replace(vocabulary_size=len(tokens) + 1)
    return EmbeddingConfig(tables=(table,), features=pushing.CONFIG.features)


def trained(folder, tokens, change=0.0, layers=()):
    """Write the artifacts of a training with these tokens, some of whose rows differ by `change` from others'."""
    config, folder = config_of(tokens), folder / f"run-{len(os.listdir(folder))}"
    words = vocabulary(tokens)
    rows = [{"word": tokens[-1], "path": [b"b", b"c"], "pieces": b"d a", "price": 3.5}, {"price": 0.1}] * 40
    run = inputs_of(folder, config, [words], eval=rows)
    kinds = {
        "model": standard_artifacts.Model,
        "model_run": standard_artifacts.ModelRun,
        "schema": standard_artifacts.Schema,
        "model_blessing": standard_artifacts.ModelBlessing,
    }
    run |= {name: artifact(kind, folder, name) for name, kind in kinds.items()}
    (folder / "schema" / "schema.pbtxt").write_text(SCHEMA)
    engine = HostEngine(config, seed=0, with_slots=False)
    numbers = [[float(column + len(token) * token[0]) for column in range(4)] for token in (*tokens, b"?")]
    engine.embedding_tables["words"].assign(np.array(numbers, np.float32) / 100 + change)
    tf.keras.utils.set_random_seed(1)
    arguments = {"layers": list(layers)} if layers else {}
    model = build_model(MODEL, config, ("price",), arguments)
    model.set_weights([np.full(value.shape, 0.25 + change, np.float32) for value in model.get_weights()])
    write_run(
        run["model_run"].uri,
        engine,
        model,
        {"words": words.digest},
        module=MODEL,
        config=config,
        arguments=arguments,
        dense=("price",),
    )
    export_model(
        f"{run['model'].uri}/Format-Serving",
        config=config,
        tables=engine.embedding_tables,
        vocabularies={"words": f"{run['vocabularies'].uri}/words.txt"},
        model=model,
        dense=PRICE,
    )
    run["model_blessing"].set_int_custom_property("blessed", 1)
    return run


def push_to(served, run, **properties):
    """Push a run to the folder of versions, with deltas."""
    folder = served.parent / f"push-{len(os.listdir(served.parent))}"
    return push(run, folder, **{"push_destination": str(served), "deltas": DELTAS, **properties})


def facts_of(pushed):
    names = ("pushed_version", "pushed_delta", "state_digest", "full_push", "model_digest")
    return [pushed.get_string_custom_property(name) for name in names]


def test_delta_is_pushed_if_only_rows_tokens_and_weights_changed(tmp_path):
    served = tmp_path / "served"
    first = push_to(served, trained(tmp_path, [b"a", b"b", b"c", b"d"]))
    (version,) = served_versions(served)
    assert facts_of(first)[:2] == [str(version), "0"]
    assert facts_of(first)[3] == "there is no version to base a delta on."
    run = trained(tmp_path, [b"b", b"e", b"d", b"a", b"f"], change=0.5)
    second = push_to(served, run)
    recorded = push_to(served, run)  # as if the first pusher was killed before MLMD recorded its execution
    assert facts_of(recorded) == facts_of(second)
    assert os.path.exists(f"{recorded.uri}/saved_model.pb")
    assert served_versions(served) == [version]
    assert facts_of(second)[:2] == [str(version), "1"]
    assert facts_of(second)[3] == ""
    number, exported, chain = newest_chain(str(served))
    assert (number, exported) == (version, facts_of(first)[2])
    assert [link.digest for link in chain] == [facts_of(second)[2]]
    assert chain[0].facts["changes"]["words"] == {"rows": 6, "came": 2, "went": 1}
    assert chain[0].facts["parity"]["passed"]
    assert chain[0].facts["deltas"]["proof"]["compared"]["embeddings"] > 50
    loaded = tf.saved_model.load(str(served / str(version)))
    assert apply_chain(loaded, exported, chain, SECRET.encode()).number == 1
    again = apply_chain(loaded, exported, chain, SECRET.encode())
    assert (again.before, again.number, again.digest) == (1, 1, chain[0].digest)
    for folder, _, names in os.walk(tmp_path):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                assert SECRET.encode() not in file.read(), name


def analysed(folder, kinds, threshold):
    """Let Transform analyse rows with these values, write its graph, and return what it computes the price from."""
    spec = {"kind": tf.io.VarLenFeature(tf.string), "price": tf.io.FixedLenFeature([], tf.float32)}
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))

    def preprocess(row):
        ids = tf.sparse.to_dense(tft.compute_and_apply_vocabulary(row["kind"]), default_value=-1)[:, 0]
        large = tf.cast(row["price"], tf.int64) > tf.constant(threshold, tf.int64)
        return {"price": tf.cast(ids, tf.float32) + tf.cast(large, tf.float32)}

    with tft_beam.Context(temp_dir=f"{folder}-temp"), beam.Pipeline(argv=[*IN_PROCESS]) as pipeline:
        rows = pipeline | beam.Create([{"kind": [kind], "price": 1.0} for kind in kinds])
        _ = (rows, metadata) | tft_beam.AnalyzeDataset(preprocess) | tft_beam.WriteTransformFn(str(folder))
        _ = metadata | tft_beam.WriteMetadata(f"{folder}/metadata", pipeline)
    return open_transform_graph(str(folder), ["price"])


def test_transform_that_learned_something_else_is_no_delta(tmp_path):
    """Rows, tokens and weights are equal; assets of Transform and a constant of it are not."""
    tokens = [b"a", b"b", b"c", b"d"]
    (tmp_path / "words.txt").write_bytes(b"a\nb\nc\nd\n")
    config, states = config_of(tokens), {}
    kinds = ["x", "x", "x", "y", "y", "z"]
    days = {"first": (kinds, 50), "same": (kinds, 50), "swapped": (["x", "x", "x", "z", "z", "y"], 50)}
    days |= {"one more": ([*kinds, "w"], 50), "threshold": (kinds, 60)}
    for name, day in days.items():
        export_model(
            tmp_path / name,
            config=config,
            tables=HostEngine(config, seed=0, with_slots=False).embedding_tables,
            vocabularies={"words": tmp_path / "words.txt"},
            model=build_model(MODEL, config, ("price",), {}),
            dense=analysed(tmp_path / f"{name} graph", *day),
            signatures=(),
            form=DeltaExport(secret=SECRET.encode()),
        )
        states[name] = read_state(tmp_path / name)
    Delta.between(states["first"], states["same"])
    for name in ("swapped", "one more", "threshold"):
        with pytest.raises(DeltaError, match="a delta does not carry"):
            Delta.between(states["first"], states[name])
