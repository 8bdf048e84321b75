"""The driver of ExampleGen: finds and fingerprints the files before TFX looks for a cached result."""

from __future__ import annotations

import hashlib
import posixpath
from typing import Any

from google.protobuf import json_format
from tfx.proto import example_gen_pb2
from tfx.types import standard_component_specs

from components import spec_keys as keys
from components.compat import FINGERPRINT_PROPERTY_NAME, FileBasedDriver
from components.example_gen.data_files import check_gaps, escaped, file_state, find_files
from components.example_gen.executor import settings_of
from embedding_core.errors import DataError
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
        config = json_format.Parse(
            resolved[standard_component_specs.INPUT_CONFIG_KEY], example_gen_pb2.Input(), ignore_unknown_fields=True
        )
        resolved[standard_component_specs.INPUT_BASE_KEY] = input_base
        digest = hashlib.sha256()
        spans, pattern = settings_of(exec_properties).spans, config.splits[0].pattern
        data = find_files(input_base, pattern, exec_properties[keys.DATA_FORMAT], spans)
        check_gaps(data.gaps, spans, input_base)
        for path in data.files:
            state = "\0".join(map(str, file_state(path)))
            digest.update(f"{posixpath.relpath(path, input_base)}\0{state}\n".encode())
        resolved[FINGERPRINT_PROPERTY_NAME] += f",files:{digest.hexdigest()[:16]}"
        return resolved
