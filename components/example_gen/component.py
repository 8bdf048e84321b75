"""The ExampleGen component."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any, ClassVar

from tfx import types
from tfx.dsl.components.base import executor_spec
from tfx.proto import example_gen_pb2, range_config_pb2
from tfx.types import standard_artifacts
from tfx.types.component_spec import ExecutionParameter
from tfx.types.standard_component_specs import (
    CUSTOM_CONFIG_KEY,
    EXAMPLES_KEY,
    INPUT_BASE_KEY,
    INPUT_CONFIG_KEY,
    OUTPUT_CONFIG_KEY,
    OUTPUT_DATA_FORMAT_KEY,
    OUTPUT_FILE_FORMAT_KEY,
    RANGE_CONFIG_KEY,
    FileBasedExampleGenSpec,
)

from components.compat import FileBasedExampleGen
from components.example_gen.driver import Driver
from components.example_gen.executor import DATA_FORMAT_KEY, SETTINGS_KEY, SPANS_KEY, Executor
from components.example_gen.files import without_spans
from components.example_gen.readers import DATA_FORMATS
from components.example_gen.settings import Settings
from components.example_gen.splits import SPLITS
from embedding_core.errors import ConfigError

__all__ = ["ExampleGen", "ExampleGenSpec"]

CODE_FINGERPRINT_KEY = "code_fingerprint"


class ExampleGenSpec(FileBasedExampleGenSpec):
    """Parameters and outputs of ExampleGen: those of TFX's own, with the format and our settings."""

    PARAMETERS: ClassVar[dict[str, Any]] = {
        **{key: given for key, given in FileBasedExampleGenSpec.PARAMETERS.items() if key != CUSTOM_CONFIG_KEY},
        DATA_FORMAT_KEY: ExecutionParameter(type=str),
        SETTINGS_KEY: ExecutionParameter(type=str),
        SPANS_KEY: ExecutionParameter(type=str, optional=True),
        CODE_FINGERPRINT_KEY: ExecutionParameter(type=str),
    }


class ExampleGen(FileBasedExampleGen):
    """Brings files of rows into the pipeline: CSV, TFRecord of tf.Examples, or Parquet.

    A file-based ExampleGen of TFX (patterns with {SPAN}, {VERSION} or {YYYY}, {MM}, {DD}; runs again when a file has
    changed) with rules of its own: text stays as it is in the data, rows are filtered, and split by hash, column or
    time; bad rows are named, and set aside up to an allowed rate.

    Component `outputs` contains:
      - `examples`: Channel of type `Examples`: the splits "train" and "eval" as gzipped TFRecord of tf.Examples, the
        same bytes for the same files and settings; its custom property `ingest` counts what became of the rows.
    """

    SPEC_CLASS = ExampleGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        input_base: str,
        pattern: str,
        data_format: str,
        settings: str,
        range_config: range_config_pb2.RangeConfig | None = None,
        spans: str | None = None,
    ) -> None:
        """Construct an ExampleGen.

        Args:
          input_base: the folder of the data.
          pattern: glob of the files under it; may hold {YYYY}, {MM} and {DD}, or {SPAN}. With `spans` in the settings
            ({"first": ..., "last": ...}, both optional and included) the files of all these spans are read, and
            otherwise those of one span, as TFX chooses it: the latest, or that of `range_config`.
          data_format: "csv", "tfrecord" or "parquet".
          settings: JSON of the columns, row filters and split, see `components.example_gen.settings.Settings`.
          range_config: which span TFX is to choose.
          spans: "<first>/<last>" in place of the bounds in the settings, either side empty for none; "" keeps those.

        Raises:
          ConfigError: the format is none of these, the pattern has `**`, or the settings break a rule.
        """
        if data_format not in DATA_FORMATS:
            raise ConfigError(f"`data_format` is {data_format!r}: it must be one of {', '.join(DATA_FORMATS)}.")
        if "**" in pattern:
            raise ConfigError(f"`pattern` is {pattern!r}: TFX knows no `**`; write a `*` for each level of folders.")
        pattern, settings = _with_pattern(pattern, settings)
        spec = ExampleGenSpec(
            **{
                INPUT_BASE_KEY: input_base,
                INPUT_CONFIG_KEY: example_gen_pb2.Input(
                    splits=[example_gen_pb2.Input.Split(name="data", pattern=pattern)]
                ),
                OUTPUT_CONFIG_KEY: _named_splits(),
                RANGE_CONFIG_KEY: range_config,
                OUTPUT_DATA_FORMAT_KEY: example_gen_pb2.FORMAT_TF_EXAMPLE,
                OUTPUT_FILE_FORMAT_KEY: example_gen_pb2.FORMAT_TFRECORDS_GZIP,
                DATA_FORMAT_KEY: data_format,
                SETTINGS_KEY: settings,
                SPANS_KEY: spans,
                CODE_FINGERPRINT_KEY: _code_fingerprint(),
                EXAMPLES_KEY: types.Channel(type=standard_artifacts.Examples),
            }
        )
        # TFX's own constructor takes no further parameters; what is above it builds the component from a spec.
        super(FileBasedExampleGen, self).__init__(spec=spec)


def _with_pattern(pattern: str, settings: str) -> tuple[str, str]:
    """The glob that TFX watches, and the settings checked; where they choose the spans, with the pattern of these."""
    data = json.loads(settings)
    if data.get("spans") is None:
        Settings.from_json(settings)
        return pattern, settings
    data["spans"] = {**data["spans"], "pattern": pattern}
    settings = json.dumps(data)
    Settings.from_json(settings)
    return without_spans(pattern), settings


def _named_splits() -> Any:
    """The names of the splits for TFX; how large they are is in the settings."""
    splits = [example_gen_pb2.SplitConfig.Split(name=name, hash_buckets=1) for name in SPLITS]
    return example_gen_pb2.Output(split_config=example_gen_pb2.SplitConfig(splits=splits))


def _code_fingerprint() -> str:
    """A digest of this folder's source, so that TFX's cache knows when the code has changed."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
