"""Measures VocabularyGen and `tft.vocabulary` on the same examples, and checks that tokens and counts are equal.

Run it with ``python -m benchmarks.vocabulary FOLDER --rows 100000 --runs 1``. The first run writes the examples into
the folder. Each measurement is a new process, pinned to one core; the two programs take turns. CPU time is that of the
process and its children, without imports. Memory is the peak resident set, in total and minus the peak after imports.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.zipf_examples import ZipfData, write_examples

_MULTIVALENT = {"single-valued": 0, "5 of 26 multivalent": 5}
_BEAM = ["--direct_running_mode=in_memory", "--direct_num_workers=1"]


def _count_ours(data: ZipfData, examples: pathlib.Path, out: pathlib.Path) -> Any:
    from tfx.dsl.components.base import base_beam_executor
    from tfx.types import standard_artifacts

    from components.artifacts import Vocabularies
    from components.vocabulary_gen.executor import Executor

    artifact, vocabularies = standard_artifacts.Examples(), Vocabularies()
    artifact.uri, artifact.split_names, vocabularies.uri = str(examples), '["train"]', str(out)
    artifact.set_string_custom_property("payload_format", "FORMAT_TF_EXAMPLE")
    features = [{"name": name, "column": {"name": name}} for name in data.names]
    executor = Executor(base_beam_executor.BaseBeamExecutor.Context(beam_pipeline_args=_BEAM))
    return lambda: executor.Do(
        {"examples": [artifact]}, {"vocabularies": [vocabularies]}, {"features": json.dumps(features)}
    )


def _count_tft(data: ZipfData, examples: pathlib.Path, out: pathlib.Path) -> Any:
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
    source = tfxio.TFExampleRecord(
        str(examples / "Split-train" / "*"), schema=schema_utils.schema_from_feature_spec(spec)
    )

    def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
        for name in data.names:
            tft.vocabulary(inputs[name], vocab_filename=name, store_frequency=True)
        return {"unused": tf.zeros([1], tf.int64) + tf.cast(tf.size(inputs[data.names[0]]), tf.int64)}

    def run() -> None:
        with beam.Pipeline(argv=_BEAM) as pipeline, tft_beam.Context(temp_dir=str(out / "temporary")):
            read = pipeline | "Read" >> source.BeamSource()
            transform = (read, source.TensorAdapterConfig()) | tft_beam.AnalyzeDataset(preprocess)
            _ = transform | tft_beam.WriteTransformFn(str(out))

    return run


_PEERS = {"VocabularyGen": _count_ours, "tft.vocabulary": _count_tft}


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measure(peer: str, data: ZipfData, examples: pathlib.Path, out: pathlib.Path) -> dict[str, float]:
    """Run one peer in this process, and return its figures."""
    run = _PEERS[peer](data, examples, out)
    base, cpu, wall = _peak_mb(), _cpu_seconds(), time.monotonic()
    run()
    return {
        "cpu_s": _cpu_seconds() - cpu,
        "wall_s": time.monotonic() - wall,
        "peak_mb": _peak_mb(),
        "peak_over_start_mb": _peak_mb() - base,
        "start_cpu_s": cpu,
    }


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
        one, other = _ours(ours, name), _theirs(theirs, name)
        if one != other:
            differ = [token for token in one.keys() | other.keys() if one.get(token) != other.get(token)]
            raise SystemExit(f"vocabulary {name!r} differs in {len(differ)} tokens, such as {differ[:3]}")
        total += len(one)
    return total


def _in_own_process(peer: str, case: str, examples: pathlib.Path, out: pathlib.Path, rows: int) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.vocabulary", str(examples), "--rows", str(rows)]
    command += ["--child", peer, "--case", case, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{peer} failed:\n{done.stderr[-4000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _run_case(case: str, folder: pathlib.Path, rows: int, runs: int) -> dict[str, Any]:
    data = ZipfData(rows=rows, multivalent=_MULTIVALENT[case])
    examples = folder / f"rows{rows}-multivalent{data.multivalent}"
    write_examples(data, examples / "Split-train")
    figures: dict[str, list[dict[str, float]]] = {peer: [] for peer in _PEERS}
    tokens = 0
    for number in range(runs):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            outs = {peer: pathlib.Path(scratch) / peer for peer in _PEERS}
            for peer in sorted(_PEERS, reverse=number % 2 == 1):
                figures[peer].append(_in_own_process(peer, case, examples, outs[peer], rows))
                print(f"{case}, run {number + 1}, {peer}: {figures[peer][-1]['cpu_s']:.1f} CPU s", flush=True)
            tokens = _compare(data, *outs.values())
            shutil.rmtree(outs["tft.vocabulary"] / "temporary", ignore_errors=True)
    ratios = [theirs["cpu_s"] / ours["cpu_s"] for ours, theirs in zip(*figures.values(), strict=True)]
    return {"case": case, "rows": rows, "tokens": tokens, "cpu_ratio": statistics.median(ratios), "runs": figures}


def _print_table(result: dict[str, Any]) -> None:
    print(f"\n{result['case']}: {result['rows']:,} rows, {result['tokens']:,} tokens, the same in both, counts too")
    print(f"{'':16}{'CPU s':>9}{'us/row':>9}{'wall s':>9}{'peak MB':>9}{'over start':>12}   CPU s of each run")
    for peer, runs in result["runs"].items():
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        each = ", ".join(f"{run['cpu_s']:.1f}" for run in runs)
        print(
            f"{peer:16}{median['cpu_s']:9.2f}{median['cpu_s'] / result['rows'] * 1e6:9.2f}{median['wall_s']:9.1f}"
            f"{median['peak_mb']:9.0f}{median['peak_over_start_mb']:12.0f}   {each}"
        )
    print(f"CPU ratio, median of the pairs: {result['cpu_ratio']:.1f}x")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="where the examples and the results go")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--case", choices=_MULTIVALENT, action="append")
    parser.add_argument("--core", type=int, default=0, help="the core that everything is pinned to")
    parser.add_argument("--child", choices=_PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    if arguments.child:
        data = ZipfData(rows=arguments.rows, multivalent=_MULTIVALENT[arguments.case[0]])
        print(json.dumps(_measure(arguments.child, data, arguments.folder, arguments.out)))
        return
    os.sched_setaffinity(0, {arguments.core})
    results = []
    for case in arguments.case or _MULTIVALENT:
        results.append(_run_case(case, arguments.folder, arguments.rows, arguments.runs))
        _print_table(results[-1])
        (arguments.folder / "vocabulary.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
