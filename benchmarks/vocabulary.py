"""Measures VocabularyGen and `tft.vocabulary` on the same examples, and checks that tokens and counts are equal.

    python -m benchmarks.vocabulary FOLDER [--rows 1000000] [--runs 3]

The first run writes the examples into the folder. Each measurement is a new process, pinned to one core. CPU time is
that of the process and its children, memory the peak during counting minus that before it, both without imports.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any, TypeAlias

from benchmarks.measuring import in_new_process, ratio, resources, show, table, take_turns
from benchmarks.zipf_examples import ZipfData, write_examples

Figures: TypeAlias = dict[str, float]

_MULTIVALENT = {"single-valued": 0, "5 of 26 multivalent": 5}
_CORE = 0
_BEAM = ["--direct_running_mode=in_memory", "--direct_num_workers=1"]


def _features(data: ZipfData) -> list[dict[str, Any]]:
    return [{"name": name, "column": {"name": name}} for name in data.names]


def _count_ours(data: ZipfData, examples: str, out: str) -> Callable[[], None]:
    from tfx.dsl.components.base import base_beam_executor
    from tfx.types import standard_artifacts

    from components.artifacts import Vocabularies
    from components.vocabulary_gen.executor import Executor

    artifact, vocabularies = standard_artifacts.Examples(), Vocabularies()
    artifact.uri, artifact.split_names, vocabularies.uri = examples, '["train"]', out
    artifact.set_string_custom_property("payload_format", "FORMAT_TF_EXAMPLE")
    executor = Executor(base_beam_executor.BaseBeamExecutor.Context(beam_pipeline_args=_BEAM))
    inputs, outputs = {"examples": [artifact]}, {"vocabularies": [vocabularies]}
    return lambda: executor.Do(inputs, outputs, {"features": json.dumps(_features(data))})


def _count_tft(data: ZipfData, examples: str, out: str) -> Callable[[], None]:
    import apache_beam as beam
    import tensorflow as tf
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from tensorflow_transform.tf_metadata import schema_utils
    from tfx_bsl.public import tfxio

    spec = {
        name: tf.io.VarLenFeature(tf.string) if name in data.many else tf.io.FixedLenFeature([], tf.string)
        for name in data.names
    }
    source = tfxio.TFExampleRecord(f"{examples}/Split-train/*", schema=schema_utils.schema_from_feature_spec(spec))

    def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
        for name in data.names:
            tft.vocabulary(inputs[name], vocab_filename=name, store_frequency=True)
        return {"unused": tf.zeros([1], tf.int64) + tf.cast(tf.size(inputs[data.names[0]]), tf.int64)}

    def run() -> None:
        with beam.Pipeline(argv=_BEAM) as pipeline, tft_beam.Context(temp_dir=f"{out}/temporary"):
            read = pipeline | "Read" >> source.BeamSource()
            transform = (read, source.TensorAdapterConfig()) | tft_beam.AnalyzeDataset(preprocess)
            _ = transform | tft_beam.WriteTransformFn(out)

    return run


_PEERS = {"VocabularyGen": _count_ours, "tft.vocabulary": _count_tft}


def measure(peer: str, rows: int, multivalent: int, examples: str, out: str) -> Figures:
    """Run one peer in this process, and return its figures."""
    return resources(_PEERS[peer](ZipfData(rows=rows, multivalent=multivalent), examples, out))


def _ours(out: pathlib.Path, name: str) -> dict[bytes, int]:
    from embedding_core.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(out, name)
    return dict(zip(vocabulary.tokens.to_pylist(), vocabulary.counts.tolist(), strict=True))


def _theirs(out: pathlib.Path, name: str) -> dict[bytes, int]:
    lines = (out / "transform_fn" / "assets" / name).read_bytes().splitlines()
    return {token: int(count) for count, token in (line.split(b" ", 1) for line in lines)}


def _compare(data: ZipfData, ours: pathlib.Path, theirs: pathlib.Path) -> int:
    """Check that all tokens and counts are equal; return the number of tokens of all vocabularies."""
    total = 0
    for name in data.names:
        counts, other = _ours(ours, name), _theirs(theirs, name)
        if counts != other:
            differ = [token for token in counts.keys() | other.keys() if counts.get(token) != other.get(token)]
            raise SystemExit(f"vocabulary {name!r} differs in {len(differ)} tokens, such as {differ[:3]}")
        total += len(counts)
    return total


def _run_case(case: str, folder: pathlib.Path, rows: int, runs: int) -> None:
    """Measure both on the same examples in turn, and print a table."""
    data = ZipfData(rows=rows, multivalent=_MULTIVALENT[case])
    examples = folder / f"rows{rows}-multivalent{data.multivalent}"
    write_examples(data, examples / "Split-train")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        outs = {peer: pathlib.Path(scratch) / peer for peer in _PEERS}

        def turn(peer: str) -> Callable[[], Figures]:
            out = tempfile.mkdtemp(dir=scratch)
            outs[peer] = pathlib.Path(out)
            given = peer, rows, data.multivalent, str(examples), out
            return lambda: in_new_process(measure, *given, core=_CORE)

        runs_of = [take_turns({peer: turn(peer) for peer in _PEERS}, 1) for _ in range(runs)]
        tokens = _compare(data, *outs.values())
    figures = {peer: [run[peer][0] for run in runs_of] for peer in _PEERS}
    head = [f"{case}, {tokens:,} tokens", "CPU s of each run", "median", "us a row", "wall s", "peak MB over start"]
    lines = []
    for peer, measured in figures.items():
        median = {key: statistics.median(run[key] for run in measured) for key in measured[0]}
        each = ", ".join(f"{run['cpu']:.1f}" for run in measured)
        cells = f"{median['cpu']:.2f}", f"{median['cpu'] / rows * 1e6:.1f}", f"{median['wall']:.1f}"
        lines.append([peer, each, *cells, f"{median['peak_mb']:.0f}"])
    show(table(head, lines), None, "")
    ours, theirs = ([run["cpu"] for run in figures[peer]] for peer in _PEERS)
    print(f"CPU ratio, median of the pairs: {ratio(theirs, ours)}")


def main() -> None:
    """Measure each case for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where the examples go")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    for case, rows in itertools.product(_MULTIVALENT, given.rows):
        _run_case(case, given.folder, rows, given.runs)


if __name__ == "__main__":
    main()
