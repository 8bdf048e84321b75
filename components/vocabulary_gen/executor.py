"""Defines the executor of VocabularyGen, which runs the counting pipeline on artifacts."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from tfx import types
from tfx.components.util import tfxio_utils
from tfx.dsl.components.base import base_beam_executor
from tfx.dsl.io import fileio
from tfx.proto import example_gen_pb2

from components import component_spec as keys
from components.base_executor import ComponentExecutor, Execution
from components.vocabulary_gen.assembling import (
    PARTS_FOLDER,
    assemble_sources,
    assemble_vocabulary,
    check_parts,
    is_part,
    merge_parts,
    read_base,
    write_part,
)
from components.vocabulary_gen.counting import SOURCES
from components.vocabulary_gen.counting_plan import CountingPlan, Evolution, plan_counting
from components.vocabulary_gen.examples_counter import ExamplesCounter, plan_after_transform
from embedding_core import errors
from embedding_core.errors import DataError, EmbeddingError
from embedding_core.schema import Json
from embedding_core.vocabulary import save_set, save_vocabulary

# Builds the Beam pipeline that counts each source on a worker, and merges counts by vocabulary in one pass.

METRICS, _ROWS_METRIC = "vocabulary_gen", "rows"

Message = tuple[str, bytes]
_REPORT, _OF_PARTS = "report", "of_parts"


@beam.typehints.with_output_types(tuple[str, bytes])
class _CountFile(beam.DoFn):
    """Counts a TFRecord file of tf.Examples, given its path; yields messages by vocabulary."""

    def __init__(self, plan: CountingPlan) -> None:
        self._plan = plan
        self._rows = Metrics.counter(METRICS, _ROWS_METRIC)

    def setup(self) -> None:
        self._counter = ExamplesCounter(self._plan)

    def process(self, path: str) -> Iterator[Message]:
        gathered = self._counter.count(path)
        self._rows.inc(gathered.rows)
        yield from gathered.messages()


class _Write(beam.DoFn):
    """Writes the files of one vocabulary from all its messages; yields its entry in the report, as JSON.

    Of a vocabulary in parts, it writes one part, and yields the facts that `_Merge` needs.
    """

    def __init__(self, plan: CountingPlan, folder: str) -> None:
        self._plan = plan
        self._folder = folder

    def process(self, keyed: tuple[str, Iterable[bytes]]) -> Iterator[tuple[None, str] | TaggedOutput]:
        name, messages = keyed
        if name == SOURCES:
            yield None, json.dumps(assemble_sources(messages))
            return
        if is_part(name):
            name, facts = write_part(self._plan, name, messages, self._folder)
            yield TaggedOutput(_OF_PARTS, (name, json.dumps(facts).encode()))
            return
        if self._plan.rules[name].parts > 1:  # the facts on its features, for `_Merge`
            yield from (TaggedOutput(_OF_PARTS, (name, message)) for message in messages)
            return
        yield None, _entry(name, lambda: _write_vocabulary(self._plan, name, messages, self._folder))


class _Merge(beam.DoFn):
    """Writes the files of one vocabulary from its parts and the facts on its features; yields its report entry."""

    def __init__(self, plan: CountingPlan, folder: str) -> None:
        self._plan = plan
        self._folder = folder

    def process(self, keyed: tuple[str, Iterable[bytes]]) -> Iterator[tuple[None, str]]:
        name, messages = keyed
        yield None, _entry(name, lambda: merge_parts(self._plan, name, messages, self._folder))


def _entry(name: str, write: Callable[[], Json]) -> str:
    """Write a vocabulary; return its entry in the report as JSON: the facts that `write` returns, or its error."""
    try:
        return json.dumps({"vocabulary": name, **write()})
    except EmbeddingError as error:
        return json.dumps({"failed": name, "error": type(error).__name__, "message": str(error)})


def _write_vocabulary(plan: CountingPlan, name: str, messages: Iterable[bytes], folder: str) -> Json:
    """Write the files of a vocabulary; return its facts, with a base also its evolution and the drift of features."""
    vocabulary = assemble_vocabulary(plan, name, messages)
    save_vocabulary(vocabulary, folder)
    known = {key: getattr(vocabulary, key) for key in ("digest", "coverage", "total_count", "private")}
    facts = {"size": len(vocabulary), **known}
    if vocabulary.evolution is None:
        return facts
    drift = {name: summary.drift for name, summary in vocabulary.features.items()}
    return {**facts, "evolution": vocabulary.evolution.facts(), "drift": drift}


def count_files(pipeline: beam.Pipeline, files: Sequence[str], plan: CountingPlan) -> beam.PCollection:
    """Count TFRecord files of tf.Examples; return messages by vocabulary."""
    return (
        pipeline
        | "Files" >> beam.Create(list(files), reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "CountFiles" >> beam.ParDo(_CountFile(plan))
    )


def write_vocabularies(messages: beam.PCollection, plan: CountingPlan, folder: str, report: str) -> None:
    """Write all vocabularies into `folder`, and a JSON list of facts on them and on the sources into `report`."""

    def write_report(keyed: tuple[None, Iterable[str]]) -> None:
        with fileio.open(report, "w") as file:
            file.write(json.dumps([json.loads(text) for text in sorted(keyed[1])], indent=2) + "\n")

    written = (
        messages
        | "ByVocabulary" >> beam.GroupByKey()
        | "WriteVocabularies" >> beam.ParDo(_Write(plan, folder)).with_outputs(_OF_PARTS, main=_REPORT)
    )
    reports = written[_REPORT]
    if any(rule.parts > 1 for rule in plan.rules.values()):
        merged = (
            written[_OF_PARTS]
            | "OfParts" >> beam.Map(lambda keyed: keyed).with_output_types(tuple[str, bytes])
            | "PartsByVocabulary" >> beam.GroupByKey()
            | "MergeParts" >> beam.ParDo(_Merge(plan, folder))
        )
        reports = (reports, merged) | "WithMerged" >> beam.Flatten()
    _ = reports | "Together" >> beam.GroupByKey() | "WriteReport" >> beam.Map(write_report)


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
          DataError: the examples are not TFRecord files of tf.Examples; a file is damaged; a feature is absent,
            empty or of mixed type; too many rows do not parse.
          VocabularyError: a previous vocabulary is damaged.
        """
        plan = _plan(execution)
        artifact = execution.output(keys.VOCABULARIES)
        report = os.path.join(artifact.uri, REPORT_FILE)
        fileio.makedirs(os.path.dirname(report))
        splits = execution.json(keys.SPLITS) or ["train"]
        execution.begin_rows(self.COMPONENT, *splits)
        with self._make_beam_pipeline() as pipeline:
            counted = _count(pipeline, execution.inputs[keys.EXAMPLES], splits, plan)
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
    """Count all splits in one pass."""
    payload, _ = tfxio_utils.resolve_payload_format_and_data_view_uri(examples)
    patterns: list[str] = []
    formats: set[str] = set()
    for split in splits:
        try:
            split_patterns, split_formats = tfxio_utils.get_file_format_and_patterns(examples, split)
        except ValueError as error:
            raise DataError(
                f"the examples have no split {split!r}: they have {[artifact.split_names for artifact in examples]}; "
                "name one of these in `splits`."
            ) from error
        patterns += split_patterns
        formats |= {*split_formats}
    files = sorted(file for pattern in patterns for file in fileio.glob(pattern) if not fileio.isdir(file))
    if not files:
        raise DataError(f"no files match {', '.join(map(repr, patterns))}: write examples there.")
    if payload != example_gen_pb2.PayloadFormat.FORMAT_TF_EXAMPLE or formats != {_TFRECORD}:
        raise DataError(
            f"the examples are {example_gen_pb2.PayloadFormat.Name(payload)} in files {', '.join(sorted(formats))}: "
            f"VocabularyGen and EmbeddingTrainer read FORMAT_TF_EXAMPLE in {_TFRECORD}; let ExampleGen write these."
        )
    return count_files(pipeline, files, plan)


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
