"""Measures deltas: the time to apply 10,000 rows of a table of 1,000,000 x 16, their bytes, and what the lock costs.

    python -m benchmarks.delta_push [--rows 1000000] [--changed 10000] [--rounds 20] [--bits 32 16]

The model has one table of tokens and one feature. A session of TensorFlow's loader takes the deltas, as in TensorFlow
Serving. Times are wall times of one call in this process, medians and 95th percentiles over the rounds; "lookup" is a
request of 32 rows to the signature `embeddings`, of the model with and without deltas, and after one delta.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tf_keras

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.deltas.content import Delta
from embedding_core.deltas.export import DeltaExport
from embedding_core.deltas.graph import checksum
from embedding_core.deltas.served_state import LoadedVersion, read_state
from embedding_core.model_inputs import model_inputs
from embedding_core.serving import export_model

DIM, SECRET = 16, b"a secret of the benchmark"


def export(folder, rows, bits, deltas):
    """Export a model of one table; return its folder."""
    config = EmbeddingConfig(
        tables=(TableConfig(name="items", vocabulary="items", vocabulary_size=len(rows), dim=DIM, oov_rows=1),),
        features=(FeatureConfig(name="item", table="items", column=ColumnConfig(name="item")),),
    )
    file = folder.parent / "items.txt"
    if not file.exists():
        file.write_bytes(b"".join(b"token-%07d\n" % number for number in range(len(rows) - 1)))
    inputs, _ = model_inputs(config, ())
    model = tf_keras.Model([inputs, {}], tf_keras.layers.Dense(1)(inputs["item"]))
    export_model(
        folder,
        config=config,
        tables={"items": rows},
        vocabularies={"items": str(file)},
        model=model,
        signatures=("embeddings",),
        rows_dtype=f"float{bits}",
        form=DeltaExport(secret=SECRET) if deltas else None,
    )
    return folder


def examples(generator, count, size):
    """Draw tokens out of `count`, and return `size` serialized tf.Examples."""
    found = []
    for number in generator.integers(0, count, size):
        row = tf.train.Example()
        row.features.feature["item"].bytes_list.value.append(b"token-%07d" % number)
        found.append(row.SerializeToString())
    return found


def percentiles(times):
    """Return the median and the 95th percentile of times in seconds, in words and milliseconds."""
    return f"{statistics.median(times) * 1e3:.2f} ms median, {np.percentile(times, 95) * 1e3:.2f} ms p95"


def lookups(version, requests):
    """Return the percentiles of 200 requests, after some to warm up."""
    timed(lambda: version.answer("embeddings", requests), 20)
    return percentiles(timed(lambda: version.answer("embeddings", requests), 200))


def timed(call, rounds):
    """Return the seconds that each of the calls takes."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def measure(folder, count, changed, rounds, bits):
    """Print the figures for rows of a number of bits."""
    generator = np.random.default_rng(1)
    rows = generator.normal(size=[count, DIM]).astype(np.float32)
    base = export(folder / f"deltas-{bits}", rows, bits, deltas=True)
    plain = export(folder / f"plain-{bits}", rows, bits, deltas=False)
    state, requests = read_state(base), examples(generator, count, 32)
    dtype, key = next(iter(state.tables.values())).rows.dtype, state.layout.checksum_key
    digest, made = state.digest(), []
    for number in range(1, rounds + 2):
        places = generator.choice(count, changed, replace=False)
        table = state.tables["items"]
        new = np.array(table.rows)
        new[places] = generator.normal(size=[changed, DIM]).astype(dtype)
        after = type(state)(
            layout=state.layout, dense=state.dense, tables={"items": type(table)(**{**vars(table), "rows": new})}
        )
        delta = Delta.between(state, after)
        content, following = delta.to_bytes(state.layout), f"{number:064d}"  # the graph does not compute the digest
        given = {"number": number, "base": digest, "digest": following, "delta": content, "secret": SECRET}
        made.append(({**given, "checksum": checksum(key, number, digest, following, content)}, delta.changed_bytes))
        state, digest = after, following
    with LoadedVersion(plain) as version:
        print(f"float{bits}: lookup without deltas: {lookups(version, requests)}")
    with LoadedVersion(base) as version:
        print(f"float{bits}: lookup with deltas: {lookups(version, requests)}")
        version.call("apply_delta", **made[0][0])
        print(f"float{bits}: lookup after a delta: {lookups(version, requests)}")
        times = []
        for request, _ in made[1:]:
            begin = time.perf_counter()
            answer = version.call("apply_delta", **request)
            times.append(time.perf_counter() - begin)
            assert answer["applied"] == 1, answer
        served = version.state().tables["items"].rows
        assert served.tobytes() == state.tables["items"].rows.tobytes()
    share = sum(len(request["delta"]) for request, _ in made) / sum(changed for _, changed in made)
    print(f"float{bits}: {changed:,} of {count:,} rows x {DIM} applied in {percentiles(times)}, {rounds} rounds")
    print(f"float{bits}: {share:.3f} bytes of payload per byte of changed rows")


def main():
    """Measure with the settings of the command line, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bits", type=int, nargs="+", default=[32, 16])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for bits in given.bits:
            measure(Path(folder), given.rows, given.changed, given.rounds, bits)


if __name__ == "__main__":
    main()
