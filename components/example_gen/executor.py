"""The executor of ExampleGen: turns files into TFRecord shards of examples, all or nothing."""

from __future__ import annotations

import json
import posixpath
import uuid
from collections.abc import Iterator, Sequence

import apache_beam as beam
from google.protobuf import json_format
from tfx import types
from tfx.components.util import examples_utils
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.dsl.io import fileio
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils, standard_component_specs

from components import spec_keys as keys
from components.base_executor import ComponentExecutor, Execution, Properties
from components.column_summary import COLUMNS_FACT, Summaries, summaries_to_json
from components.example_gen.data_files import check_gaps, find_files, group_files, size_of
from components.example_gen.ingest import ingest
from components.example_gen.pieces import find_pieces, pieces_fact
from components.example_gen.rows import SHOWN
from components.example_gen.settings import Settings
from components.example_gen.splits import SPLITS
from components.example_gen.tally import Tally
from embedding_core.errors import ConfigError, DataError, EmbeddingError
from embedding_core.schema import Json
from embedding_core.storage import file_digest

_INGEST_FACT = "ingest"


class Executor(ComponentExecutor, BaseBeamExecutor):
    """Reads groups of files in parallel, each row once, and publishes the shards when all are written."""

    COMPONENT = "ExampleGen"

    def execute(self, execution: Execution) -> None:
        """Write the splits "train" and "eval"; record the data read (`data`) and the counts (`ingest`) on them.

        Raises:
          ConfigError: the settings break a rule.
          DataError: the data is not what the settings require; the output is then empty.
        """
        properties = execution.properties
        settings = settings_of(properties)
        input_base, pattern = properties[standard_component_specs.INPUT_BASE_KEY], _pattern(properties)
        data = find_files(input_base, pattern, properties[keys.DATA_FORMAT], settings.spans)
        check_gaps(data.gaps, settings.spans, input_base)
        examples = execution.output(keys.EXAMPLES)
        staging = posixpath.join(examples.uri, f".staging-{uuid.uuid4().hex}")
        fileio.makedirs(staging)
        try:
            tally, digests = self._ingest(group_files(data.files), properties, staging)
            tally.check(settings, posixpath.join(input_base, pattern))
            _publish(tally, staging, examples)
        finally:
            fileio.rmtree(staging)
        gaps = {"count": data.gaps.total, "first": data.gaps.first}
        facts = {**tally.facts(settings), "files_ignored": data.ignored[:SHOWN], "spans_without_file": gaps}
        examples.set_string_custom_property(_INGEST_FACT, json.dumps(facts))
        if not settings.passthrough:  # passthrough keeps NaNs, which summaries count as missing
            fact = summaries_to_json(tally.kept, _shown_summaries(tally, settings))
            examples.set_string_custom_property(COLUMNS_FACT, fact)
        pieces = pieces_fact(find_pieces(data.files, input_base, settings), properties[keys.SETTINGS], digests)
        examples.set_string_custom_property(keys.DATA_FACT, json.dumps(pieces))
        execution.files_read.extend({"path": path, "size": size_of(path)} for path in data.files)

    def _ingest(
        self, groups: Sequence[Sequence[str]], properties: Properties, staging: str
    ) -> tuple[Tally, dict[str, str]]:
        """Ingest the groups in parallel; return the counts of the rows, and the sha256 of every file."""
        work = beam.ParDo(_Ingest(properties[keys.DATA_FORMAT], properties[keys.SETTINGS], staging))
        with self._make_beam_pipeline() as pipeline:
            _ = pipeline | "Files" >> beam.Create(list(enumerate(groups))) | beam.Reshuffle() | "Ingest" >> work
        total, digests = Tally(), {}
        for number in range(len(groups)):
            result = _result(staging, number)
            total.add(Tally.from_json(result["tally"]))
            digests.update(result["sha256"])
        return total, digests


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
    """Return the settings; their bounds of the spans are replaced by those in `data_spans`, if it is given.

    Raises:
      ConfigError: settings or bounds break a rule, or bounds are given and the pattern has no placeholders.
    """
    text, spans = exec_properties[keys.SETTINGS], exec_properties.get(keys.DATA_SPANS)
    if not spans:
        return Settings.from_json(text)
    settings = Settings.from_json(text)
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


class _Ingest(beam.DoFn):
    """Ingests one group of files, and writes the counts, or an error in the data, to a file in `staging`.

    An error in the data is not raised within Beam, because a runner would retry, and wrap the message in its own.
    """

    def __init__(self, data_format: str, settings: str, staging: str) -> None:
        super().__init__()
        self._data_format = data_format
        self._settings = settings
        self._staging = staging

    def process(self, element: tuple[int, Sequence[str]]) -> Iterator[None]:
        number, files = element
        settings = Settings.from_json(self._settings)
        try:
            tally = ingest(files, number, self._data_format, settings, self._staging)
            result = {"tally": tally.to_json(), "sha256": {path: file_digest(path)["sha256"] for path in files}}
        except EmbeddingError as error:
            result = {"error": str(error)}
        path = _result_path(self._staging, number)
        attempt = f"{path}-{uuid.uuid4().hex}"
        with fileio.open(attempt, "w") as file:
            file.write(json.dumps(result))
        fileio.rename(attempt, path, overwrite=True)
        yield from ()


def _result_path(staging: str, number: int) -> str:
    return posixpath.join(staging, f"group-{number:05d}.json")


def _result(staging: str, number: int) -> Json:
    with fileio.open(_result_path(staging, number), "r") as file:
        result: Json = json.loads(file.read())
    if "error" in result:
        raise DataError(result["error"])
    return result


def _pattern(properties: Properties) -> str:
    config = json_format.Parse(
        properties[standard_component_specs.INPUT_CONFIG_KEY], example_gen_pb2.Input(), ignore_unknown_fields=True
    )
    if len(config.splits) != 1:
        raise ConfigError(f"`input_config` has {len(config.splits)} splits: it must have one, the pattern of the data.")
    return str(config.splits[0].pattern)


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
