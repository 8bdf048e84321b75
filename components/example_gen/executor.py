"""Defines the executor of ExampleGen, which turns files into TFRecord shards of examples, all or nothing.

With histories it works in two steps: it partitions the events by user, and turns each part into shards.
"""

from __future__ import annotations

import functools
import json
import posixpath
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import apache_beam as beam
from google.protobuf import json_format
from tfx import types
from tfx.components.util import examples_utils
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.dsl.io import fileio
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils, standard_component_specs

from components import component_spec as keys
from components import progress
from components.base_executor import ComponentExecutor, Execution, Properties
from components.column_summary import COLUMNS_FACT, Summaries, summaries_to_json
from components.example_gen.data_files import (
    PROGRESS_BYTES,
    check_gaps,
    file_state,
    find_files,
    find_pieces,
    group_files,
    pieces_fact,
    size_of,
    unpacked_bytes,
)
from components.example_gen.histories import number_of_parts, read_part, write_events, write_histories
from components.example_gen.prepared_rows import ingest, read_rows
from components.example_gen.rows import SHOWN
from components.example_gen.sampling import copies
from components.example_gen.settings import Settings
from components.example_gen.splits import SPLITS
from components.example_gen.tally import Tally, sum_of
from components.piece_names import describe_pieces
from embedding_core.errors import ConfigError, DataError, EmbeddingError
from embedding_core.schema import Json
from embedding_core.storage import file_digest

_INGEST_FACT = "ingest"


class Executor(ComponentExecutor, BaseBeamExecutor):
    """Reads groups of files in parallel, each row once, and publishes the shards when all are written."""

    COMPONENT = "ExampleGen"

    def execute(self, execution: Execution) -> None:
        """Write the splits "train" and "eval"; record the data read (`data`) and the counts (`ingest`) on the artifact.

        Raises:
          ConfigError: the settings break a rule.
          DataError: the data is not what the settings require; the output is then empty.
        """
        properties = execution.properties
        settings = settings_of(properties)
        input_base = properties[standard_component_specs.INPUT_BASE_KEY]
        pattern, eval_pattern = patterns_of(properties)
        data = find_files(input_base, pattern, properties[keys.DATA_FORMAT], settings.spans, eval_pattern)
        files = [*data.files, *data.eval]
        check_gaps(data.gaps, settings.spans, input_base)
        examples = execution.output(keys.EXAMPLES)
        staging = posixpath.join(examples.uri, f".staging-{uuid.uuid4().hex}")
        fileio.makedirs(staging)
        try:
            states = {path: file_state(path) for path in files}
            pieces = find_pieces(data.files, input_base, settings.spans)
            named = posixpath.join(input_base, pattern)
            if settings.spans is not None:
                named = f"{named} ({describe_pieces(pieces)})"
            if eval_pattern is not None:
                named = f"{named} and {posixpath.join(input_base, eval_pattern)}"
            parts = 0 if settings.histories is None else number_of_parts(unpacked_bytes(files))
            train, for_eval = group_files(data.files), group_files(data.eval) if data.eval else []
            read = functools.partial(
                _read_group,
                settings.to_json(),
                settings.of_eval_files.to_json(),
                len(train),
                properties[keys.DATA_FORMAT],
                staging,
                parts,
            )
            progress.begin("ExampleGen", sum(size_of(path) // PROGRESS_BYTES for path in files), unit="KB")
            groups = self._in_parallel("Ingest", read, [*train, *for_eval], staging)
            tally = sum_of(Tally.from_json(group["tally"]) for group in groups)
            digests = {path: digest for group in groups for path, digest in group["sha256"].items()}
            _require_unchanged(states)
            for error in copies(data, properties[keys.DATA_FORMAT], settings, digests.__getitem__):
                raise error
            if parts:
                tally.check(settings, named)
                events = [name for group in groups for name in group["events"]]
                make = functools.partial(_make_histories, settings.to_json(), staging)
                made = self._in_parallel("MakeHistories", make, [events] * parts, staging)
                tally.add(sum_of(Tally.from_json(part["tally"]) for part in made))
            tally.check(settings, named)
            _publish(tally, staging, examples)
        finally:
            fileio.rmtree(staging)
        gaps = {"count": data.gaps.total, "first": data.gaps.first}
        facts = {**tally.facts(settings), "files_ignored": data.ignored[:SHOWN], "spans_without_file": gaps}
        examples.set_string_custom_property(_INGEST_FACT, json.dumps(facts))
        if not settings.passthrough:  # passthrough keeps NaNs, which summaries count as missing
            fact = summaries_to_json(tally.kept, _shown_summaries(tally, settings))
            examples.set_string_custom_property(COLUMNS_FACT, fact)
        eval_pieces = find_pieces(data.eval, input_base, None)
        fact_of_data = pieces_fact(pieces, properties[keys.SETTINGS], digests, eval_pieces)
        examples.set_string_custom_property(keys.DATA_FACT, json.dumps(fact_of_data))
        execution.files_read.extend({"path": path, "size": size_of(path)} for path in data.files)
        execution.files_read.extend({"path": path, "size": size_of(path), "split": "eval"} for path in data.eval)

    def _in_parallel(self, step: str, work: _Work, elements: Sequence[Sequence[str]], staging: str) -> list[Json]:
        """Do a step of the work for each element; return the results in order."""
        with self._make_beam_pipeline() as pipeline:
            numbered = pipeline | "Elements" >> beam.Create(list(enumerate(elements)))
            _ = numbered | beam.Reshuffle() | step >> beam.ParDo(_Step(step, work, staging))
        return [_result(staging, step, number) for number in range(len(elements))]


def _require_unchanged(states: Mapping[str, tuple[int, ...]]) -> None:
    for path, state in states.items():
        if file_state(path) != state:
            raise DataError(f"{path} changed while it was read: run again when its writer is done.")


def _shown_summaries(tally: Tally, settings: Settings) -> Summaries:
    """Return the summaries for ML Metadata; if a column is private, columns other than floats keep only counts."""
    if not settings.private:
        return tally.summaries
    return {
        split: {
            name: summary if settings.columns.get(name) == "float" else summary.without_values()
            for name, summary in columns.items()
        }
        for split, columns in tally.summaries.items()
    }


def settings_of(exec_properties: Json) -> Settings:
    """Return the settings; if `data_spans` is given, it replaces the bounds of the spans.

    Raises:
      ConfigError: settings or bounds break a rule, or bounds are given and the pattern has no placeholders.
    """
    settings, spans = Settings.from_json(exec_properties[keys.SETTINGS]), exec_properties.get(keys.DATA_SPANS)
    if not spans:
        return settings
    first, slash, last = spans.partition("/")
    if not slash or settings.spans is None:
        rule = "it must be <first>/<last>" if not slash else "the pattern of the data has no placeholders of spans"
        raise ConfigError(
            f"`{keys.DATA_SPANS}` is {spans!r}: {rule}; write it like 2011-10-01/2011-10-31, or leave it empty."
        )
    return settings.replace(spans=settings.spans.replace(first=_bound(first), last=_bound(last)))


def _bound(text: str) -> str | int | None:
    """Parse a bound: a number for {SPAN}, else a date; None if it is empty."""
    return int(text) if text.isdigit() else text or None


_Work: TypeAlias = Callable[[int, Sequence[str]], Json]
"""The work for one element, given its number and its names of files; it returns JSON values."""


class _Step(beam.DoFn):
    """Does a step of the work, and writes its result, or an error in the data, to a file in `staging`.

    An error in the data is not raised within Beam, because a runner would retry, and wrap the message in its own.
    """

    def __init__(self, step: str, work: _Work, staging: str) -> None:
        super().__init__()
        self._step = step
        self._work = work
        self._staging = staging

    def process(self, element: tuple[int, Sequence[str]]) -> Iterator[None]:
        number, files = element
        try:
            result = self._work(number, files)
        except EmbeddingError as error:
            result = {"error": str(error)}
        path = _result_path(self._staging, self._step, number)
        attempt = f"{path}-{uuid.uuid4().hex}"
        with fileio.open(attempt, "w") as file:
            file.write(json.dumps(result))
        fileio.rename(attempt, path, overwrite=True)
        yield from ()


def _read_group(
    settings_json: str,
    eval_settings_json: str,
    first_eval: int,
    data_format: str,
    staging: str,
    parts: int,
    number: int,
    files: Sequence[str],
) -> Json:
    """Read one group of files; write shards of examples, or, if these need histories, files of events.

    Args:
      settings_json: the settings as JSON, which runners can send.
      eval_settings_json: those for files whose rows are all for the eval split.
      first_eval: number of the first group of such files.
      data_format: format of the files.
      staging: folder of what is written.
      parts: number of parts of the events.
      number: number of the group.
      files: the files.

    Returns:
      The counts, the digest of each file, and the names of the files of events.
    """
    settings = Settings.from_json(settings_json if number < first_eval else eval_settings_json)
    events: list[str] = []
    if settings.histories is None:
        tally = ingest(files, number, data_format, settings, staging)
    else:
        tally = Tally(filtered=[0] * len(settings.conditions))
        rows = read_rows(files, data_format, settings, tally)
        events = write_events(rows, number, settings.histories, staging, parts, tally)
    digests = {path: file_digest(path)["sha256"] for path in files}
    return {"tally": tally.to_json(), "sha256": digests, "events": events}


def _make_histories(settings_json: str, staging: str, number: int, files: Sequence[str]) -> Json:
    """Read one part of the events, make the histories of its users, and write shards of examples; return the counts."""
    settings = Settings.from_json(settings_json)
    table = read_part(staging, files, number)
    if table is None or settings.histories is None:
        return {"tally": Tally(filtered=[0] * len(settings.conditions)).to_json()}
    return {"tally": write_histories(table, number, settings, settings.histories, staging).to_json()}


def _result_path(staging: str, step: str, number: int) -> str:
    return posixpath.join(staging, f"{step}-{number:05d}.json")


def _result(staging: str, step: str, number: int) -> Json:
    with fileio.open(_result_path(staging, step, number), "r") as file:
        result: Json = json.loads(file.read())
    if "error" in result:
        raise DataError(result["error"])
    return result


def patterns_of(properties: Properties) -> tuple[str, str | None]:
    """Return the pattern of the data, and that of the files whose rows are all for the eval split, if there are any.

    Raises:
      ConfigError: `input_config` has other patterns.
    """
    config = json_format.Parse(
        properties[standard_component_specs.INPUT_CONFIG_KEY], example_gen_pb2.Input(), ignore_unknown_fields=True
    )
    names = [split.name for split in config.splits]
    if len(names) != 1 and names != ["train", "eval"]:
        raise ConfigError(
            f"`input_config` has the splits {names!r}: it must have one, the pattern of the data, or train and eval."
        )
    patterns = [str(split.pattern) for split in config.splits]
    return patterns[0], patterns[1] if len(patterns) > 1 else None


def _publish(tally: Tally, staging: str, examples: types.Artifact) -> None:
    """Move the shards into the splits' folders, all or none; they replace those of a previous attempt."""
    examples.split_names = artifact_utils.encode_split_names(list(SPLITS))
    try:
        for split in SPLITS:
            folder = _emptied(artifact_utils.get_split_uri([examples], split))
            fileio.makedirs(folder)
            names = tally.shards[split]
            for position, name in enumerate(names):
                shard = f"data_tfrecord-{position:05d}-of-{len(names):05d}.gz"
                fileio.rename(posixpath.join(staging, name), posixpath.join(folder, shard))
    except BaseException:
        for split in SPLITS:
            _emptied(artifact_utils.get_split_uri([examples], split))
        raise
    examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
    examples_utils.set_file_format(examples, "tfrecords_gzip")


def _emptied(folder: str) -> str:
    if fileio.exists(folder):
        fileio.rmtree(folder)
    return folder
