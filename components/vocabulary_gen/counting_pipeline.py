"""Builds the Beam pipeline that counts each source on a worker, and merges counts by vocabulary in one pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue
from tfx.dsl.io import fileio
from tfx_bsl.public import tfxio

from components.vocabulary_gen.assembling import assemble_sources, assemble_vocabulary, is_part, merge_parts, write_part
from components.vocabulary_gen.counting import SOURCES, SourceCounts
from components.vocabulary_gen.counting_plan import CountingPlan
from components.vocabulary_gen.examples_counter import ExamplesCounter
from embedding_core.errors import EmbeddingError
from embedding_core.schema import Json
from embedding_core.vocabulary import save_vocabulary

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


@beam.typehints.with_output_types(tuple[str, bytes])
class _CountArrow(beam.DoFn):
    """Counts Arrow record batches; yields messages by vocabulary at the end of each bundle."""

    def __init__(self, plan: CountingPlan, source: str) -> None:
        self._plan = plan
        self._source = source
        self._rows = Metrics.counter(METRICS, _ROWS_METRIC)

    def setup(self) -> None:
        self._counter = ExamplesCounter(self._plan)

    def start_bundle(self) -> None:
        self._gathered = SourceCounts(self._plan, self._source)

    def process(self, batch: pa.RecordBatch) -> None:
        self._counter.count_batch(batch, self._source, self._gathered)
        self._rows.inc(batch.num_rows)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for message in self._gathered.messages():
            yield WindowedValue(message, GlobalWindow().max_timestamp(), [GlobalWindow()])


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


def count_arrow(pipeline: beam.Pipeline, source: tfxio.TFXIO, plan: CountingPlan, label: str) -> beam.PCollection:
    """Count a TFXIO source of any payload format; return messages by vocabulary, in which `label` names the source."""
    return (
        pipeline
        | f"Read[{label}]" >> source.BeamSource()
        | f"CountArrow[{label}]" >> beam.ParDo(_CountArrow(plan, label))
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
