"""Defines the component ExampleGen and its driver, which fingerprints files before TFX looks for a cached result."""

from __future__ import annotations

import hashlib
import posixpath
from typing import Any, ClassVar

from tfx.dsl.components.base import executor_spec
from tfx.proto import example_gen_pb2, range_config_pb2
from tfx.types import standard_component_specs
from tfx.types.standard_component_specs import FileBasedExampleGenSpec

from components import component_spec as keys
from components.compat import FINGERPRINT_PROPERTY_NAME, FileBasedDriver, FileBasedExampleGen
from components.component_spec import parameters, spec_with_outputs
from components.example_gen.data_files import check_gaps, escaped, file_state, find_files, without_spans
from components.example_gen.executor import Executor, patterns_of, settings_of
from components.example_gen.readers import DATA_FORMATS
from components.example_gen.row_selection import SplitByFile
from components.example_gen.settings import Settings
from components.example_gen.splits import SPLITS
from embedding_core.errors import ConfigError, DataError
from embedding_core.schema import Json


class Driver(FileBasedDriver):
    """TFX's driver, with an error if no file matches, and a finer fingerprint of the files.

    TFX's fingerprint covers the number of files, their total size and their modification times in seconds. It misses a
    file that was renamed, or replaced by one of the same size within a second or with its time set back. KFP runs TFX's
    driver, not this one.
    """

    def resolve_exec_properties(self, exec_properties: Json, *args: Any, **kwargs: Any) -> Json:
        """Fill in the span, the version and the fingerprint of the files.

        Raises:
          DataError: no file matches, the files cannot be grouped by span, or a span that must have a file has none.
        """
        input_base = exec_properties[standard_component_specs.INPUT_BASE_KEY]
        try:
            # TFX interprets the folder as a part of the pattern.
            literal = {**exec_properties, standard_component_specs.INPUT_BASE_KEY: escaped(input_base)}
            resolved: Json = super().resolve_exec_properties(literal, *args, **kwargs)
        except ValueError as error:
            raise DataError(f"the files under {input_base!r} cannot be grouped by span: {error}.") from error
        resolved[standard_component_specs.INPUT_BASE_KEY] = input_base
        digest = hashlib.sha256()
        spans = settings_of(exec_properties).spans
        pattern, eval_pattern = patterns_of(resolved)
        data = find_files(input_base, pattern, exec_properties[keys.DATA_FORMAT], spans, eval_pattern)
        check_gaps(data.gaps, spans, input_base)
        for path in (*data.files, *data.eval):
            state = "\0".join(map(str, file_state(path)))
            digest.update(f"{posixpath.relpath(path, input_base)}\0{state}\n".encode())
        resolved[FINGERPRINT_PROPERTY_NAME] += f",files:{digest.hexdigest()[:16]}"
        return resolved


class ExampleGenSpec(FileBasedExampleGenSpec):
    """Parameters and outputs of TFX's file-based ExampleGen, with a format and settings instead of `custom_config`."""

    PARAMETERS: ClassVar[Json] = {
        **{key: given for key, given in FileBasedExampleGenSpec.PARAMETERS.items() if key != keys.CUSTOM_CONFIG},
        **parameters(
            {keys.DATA_FORMAT: str, keys.SETTINGS: str}, optional={keys.CODE_FINGERPRINT: str, keys.DATA_SPANS: str}
        ),
    }


class ExampleGen(FileBasedExampleGen):
    """Reads rows from CSV, TFRecord (of tf.Examples) or Parquet files into the pipeline.

    It extends TFX's file-based ExampleGen, which accepts patterns with {SPAN}, {VERSION} or {YYYY}, {MM}, {DD} and runs
    again when a file has changed. It keeps text as it is in the data, filters rows, and splits them by hash, column,
    time, leave-one-out or file. It makes histories of users out of rows that are events. It reports bad rows, and sets
    them aside up to an allowed rate.

    Component `outputs` contains:
      - `examples`: Channel of type `Examples`: the splits "train" and "eval" as gzipped TFRecord of tf.Examples, the
        same bytes for the same files and settings; its custom property `ingest` counts its rows.
    """

    SPEC_CLASS = ExampleGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        input_base: str,
        pattern: str,
        data_format: str,
        settings: Settings,
        range_config: range_config_pb2.RangeConfig | None = None,
        spans: str | None = None,
        eval_pattern: str | None = None,
        code_fingerprint: str | None = None,
    ) -> None:
        """Construct an ExampleGen.

        Args:
          input_base: the folder of the data.
          pattern: glob of the files under `input_base`; may hold {YYYY}, {MM} and {DD}, or {SPAN}. If the settings
            have `spans`, the files of all these spans are read. Otherwise one span is read: that of
            `range_config`, or the latest.
          data_format: "csv", "tfrecord" or "parquet".
          settings: columns, row filters, split and more.
          range_config: the span to read, as TFX defines it.
          spans: "<first>/<last>" in place of the bounds in the settings; an empty side is open, "" keeps the bounds.
          eval_pattern: glob of the files under `input_base` whose rows are all for the eval split, if the settings
            split by file; None otherwise.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.

        Raises:
          ConfigError: `data_format` is unknown, a pattern has `**`, or `eval_pattern` does not fit the settings' split.
        """
        if data_format not in DATA_FORMATS:
            raise ConfigError(f"`data_format` is {data_format!r}: it must be one of {', '.join(DATA_FORMATS)}.")
        for key, glob in (("pattern", pattern), ("eval_pattern", eval_pattern or "")):
            if "**" in glob:
                raise ConfigError(f"`{key}` is {glob!r}: TFX has no `**`; write a `*` for each level of folders.")
        if (eval_pattern is not None) != isinstance(settings.split, SplitByFile):
            raise ConfigError(
                f"`eval_pattern` is {eval_pattern!r}, and the settings split by {settings.split.by}: give it with "
                "`split=SplitByFile()`, and only then."
            )
        pattern = pattern if settings.spans is None else without_spans(pattern)
        patterns = {"data": pattern} if eval_pattern is None else {"train": pattern, "eval": eval_pattern}
        splits = [example_gen_pb2.Input.Split(name=name, pattern=glob) for name, glob in patterns.items()]
        spec = spec_with_outputs(
            ExampleGenSpec,
            input_base=input_base,
            input_config=example_gen_pb2.Input(splits=splits),
            output_config=_named_splits(),
            range_config=range_config,
            output_data_format=example_gen_pb2.FORMAT_TF_EXAMPLE,
            output_file_format=example_gen_pb2.FORMAT_TFRECORDS_GZIP,
            data_format=data_format,
            settings=settings.to_json(),
            data_spans=spans,
            code_fingerprint=code_fingerprint,
        )
        # TFX's constructor does not accept our parameters; that of its base class takes the spec.
        super(FileBasedExampleGen, self).__init__(spec=spec)


def _named_splits() -> Any:
    """Return the names of the splits for TFX; the settings determine the rows of each, not `hash_buckets`."""
    splits = [example_gen_pb2.SplitConfig.Split(name=name, hash_buckets=1) for name in SPLITS]
    return example_gen_pb2.Output(split_config=example_gen_pb2.SplitConfig(splits=splits))
