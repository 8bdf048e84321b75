"""Defines the executor of VocabularyGen, which runs the counting pipeline on artifacts."""

from __future__ import annotations

import dataclasses
import json
import os

import apache_beam as beam
from tfx import types
from tfx.components.util import tfxio_utils
from tfx.dsl.components.base import base_beam_executor
from tfx.dsl.io import fileio
from tfx.proto import example_gen_pb2

from components import component_spec as keys
from components.base_executor import ComponentExecutor, Execution
from components.vocabulary_gen.assembling import PARTS_FOLDER, check_parts, read_base
from components.vocabulary_gen.counting_pipeline import count_arrow, count_files, write_vocabularies
from components.vocabulary_gen.counting_plan import CountingPlan, Evolution, plan_counting
from components.vocabulary_gen.examples_counter import plan_after_transform
from embedding_core import errors
from embedding_core.errors import DataError, EmbeddingError
from embedding_core.schema import Json
from embedding_core.vocabulary import save_set

_TFRECORD = "tfrecords_gzip"
"""TFX's name for TFRecord files, gzipped or plain: the reader recognizes either."""

REPORT_FILE = "report/counting.json"
"""Report on rows read, rows set aside and why, and each vocabulary's facts; relative to the artifact's folder."""


class Executor(ComponentExecutor, base_beam_executor.BaseBeamExecutor):
    """Counts the tokens of all features in one pass over the examples."""

    COMPONENT = "VocabularyGen"

    def execute(self, execution: Execution) -> None:
        """Count the tokens, and write the vocabularies.

        Raises:
          ConfigError: a parameter breaks its rule.
          DataError: a file is damaged; a feature is absent, empty or of mixed type; too many rows do not parse.
          VocabularyError: a previous vocabulary is damaged.
        """
        plan = _plan(execution)
        artifact = execution.output(keys.VOCABULARIES)
        report = os.path.join(artifact.uri, REPORT_FILE)
        fileio.makedirs(os.path.dirname(report))
        with self._make_beam_pipeline() as pipeline:
            counted = _count(pipeline, execution.inputs[keys.EXAMPLES], execution.json(keys.SPLITS) or ["train"], plan)
            write_vocabularies(counted, plan, artifact.uri, report)
        parts = os.path.join(artifact.uri, PARTS_FOLDER)
        if fileio.exists(parts):
            fileio.rmtree(parts)
        with fileio.open(report) as file:
            entries = json.load(file)
        sources = next(entry for entry in entries if "rows" in entry)
        _check(entries, sources, float(execution.properties.get(keys.MAX_BAD_ROW_RATE) or 0.0))
        vocabularies = {entry.pop("vocabulary"): entry for entry in entries if "vocabulary" in entry}
        save_set(artifact.uri, {name: facts["digest"] for name, facts in vocabularies.items()})
        artifact.put_facts(vocabularies=vocabularies, rows=sources["rows"], bad_rows=sources["bad_rows"])


def _plan(execution: Execution) -> CountingPlan:
    folders = execution.given_uris(keys.TRANSFORM_GRAPH, keys.BASE_VOCABULARIES)
    rules = execution.json(keys.VOCABULARY_RULES) or {}
    plan = plan_after_transform(plan_counting(execution.json(keys.FEATURES), rules, folders.get(keys.TRANSFORM_GRAPH)))
    if keys.BASE_VOCABULARIES in folders:
        evolution = Evolution.from_mapping(execution.json(keys.EVOLUTION) or {})
        base = read_base(folders[keys.BASE_VOCABULARIES], evolution)
        plan = dataclasses.replace(plan, base=base)
    check_parts(plan)
    return plan


def _count(
    pipeline: beam.Pipeline, examples: list[types.Artifact], splits: list[str], plan: CountingPlan
) -> beam.PCollection:
    """Count all splits: the fast path for TFRecord of tf.Example, TFXIO for any other payload."""
    payload, _ = tfxio_utils.resolve_payload_format_and_data_view_uri(examples)
    patterns: list[str] = []
    formats: set[str] = set()
    for split in splits:
        split_patterns, split_formats = _patterns(examples, split)
        patterns += split_patterns
        formats |= {*split_formats}
    files = sorted(file for pattern in patterns for file in fileio.glob(pattern) if not fileio.isdir(file))
    if not files:
        raise DataError(f"no files match {', '.join(map(repr, patterns))}: write examples there.")
    if payload == example_gen_pb2.PayloadFormat.FORMAT_TF_EXAMPLE and formats <= {_TFRECORD}:
        return count_files(pipeline, files, plan)
    sources = [tfxio_utils.get_split_tfxio(examples, split, ["VocabularyGen"]) for split in splits]
    counted = [count_arrow(pipeline, source, plan, split) for split, source in zip(splits, sources, strict=True)]
    return counted | "AllSplits" >> beam.Flatten()


def _patterns(examples: list[types.Artifact], split: str) -> tuple[list[str], list[str]]:
    try:
        patterns, formats = tfxio_utils.get_file_format_and_patterns(examples, split)
    except ValueError as error:
        raise DataError(
            f"the examples have no split {split!r}: they have {[artifact.split_names for artifact in examples]}; "
            "name one of these in `splits`."
        ) from error
    return patterns, formats


def _check(entries: list[Json], sources: Json, max_bad_row_rate: float) -> None:
    """Raise the first problem, with the number of further ones."""
    rows, bad = sources["rows"], sources["bad_rows"]
    wrong: list[EmbeddingError] = [DataError(problem) for problem in sources["problems"]]
    if bad > max_bad_row_rate * (rows + bad):
        first = sources["bad"][0]
        wrong.append(
            DataError(
                f"file {first['source']!r}, row {first['row']}: {first['reason']}; {bad} of {rows + bad} rows are bad, "
                f"but `max_bad_row_rate` is {max_bad_row_rate}: correct the rows, or allow a higher rate."
            )
        )
    if not rows and not wrong:
        wrong.append(DataError("the examples hold no rows: check the data, its split and its filters."))
    wrong += [getattr(errors, entry["error"])(entry["message"]) for entry in entries if "failed" in entry]
    if wrong:
        more = f" (and {len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
        raise type(wrong[0])(f"{wrong[0]}{more}")
