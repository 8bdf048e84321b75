"""Measures what a replay on two versions of real size costs: time to load, memory, latency of each type of rows.

    python -m benchmarks.shadow_cost <working folder> [--rows 1000000] [--dim 64] [--requests 1000] [--batch 32]

writes versions with one table of raw ids as float32 and as int8, and replays drawn requests of serialized tf.Examples
on float32 against itself, and on float32 against int8.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.signatures import embeddings_signature
from embedding_core.shadow.replay import Request, replay
from embedding_core.shadow_rules import ShadowRules


def write_version(folder: Path, rows: int, dim: int, dtype: str) -> str:
    """Write a version with a drawn table, unless it is there; return its folder."""
    if not (folder / "saved_model.pb").exists():
        values = np.random.default_rng(7).normal(0, 0.1, (rows, dim)).astype(np.float32)
        config = EmbeddingConfig(
            tables=(TableConfig(name="item", vocabulary_size=rows, dim=dim),),
            features=(FeatureConfig(name="item", table="item"),),
        )
        module = ServingModule(config, {"item": values}, {}, None, dtype)
        tf.saved_model.save(module, str(folder), signatures=embeddings_signature(module))
    return str(folder)


def drawn_requests(rows: int, count: int, batch: int) -> Iterator[Request]:
    """Yield requests of drawn ids."""
    generator = np.random.default_rng(1)
    for number in range(count):
        examples = []
        for row in generator.integers(0, rows, batch):
            example = tf.train.Example()
            example.features.feature["item"].int64_list.value.append(int(row))
            examples.append(example.SerializeToString())
        inputs = {"examples": tf.make_tensor_proto(examples, tf.string).SerializeToString()}
        yield Request(place=f"request {number}", model="m", kind="predict_log", inputs=inputs)


def main() -> None:
    """Replay, and print a JSON object for each pair of versions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="working folder")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    versions = {
        dtype: write_version(given.folder / f"{given.rows}x{given.dim}_{dtype}", given.rows, given.dim, dtype)
        for dtype in ("float32", "int8")
    }
    for new, folder in versions.items():
        begun = time.monotonic()
        requests = drawn_requests(given.rows, given.requests, given.batch)
        figures = replay(versions["float32"], folder, requests, ShadowRules()).to_json()
        cost = {name: figures[name] for name in ("old", "new", "requests", "refused", "outputs")}
        print(
            json.dumps({"types": f"float32 against {new}", "seconds": round(time.monotonic() - begun, 1), **cost}),
            flush=True,
        )


if __name__ == "__main__":
    main()
