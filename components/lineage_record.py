"""Writes a lineage record beside every output artifact, for when ML Metadata is not available.

Vertex AI has no ML Metadata store to query, and a bucket outlives the cluster that filled it. So every executor writes
`<uri>.lineage.json` beside each of its outputs. The file is not inside the output's folder, so that it does not change
a digest over the output's files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import types
from tfx.dsl.io import fileio

from components.artifact_files import RECORD_SUFFIX
from embedding_core.schema import Json


def record_lineage(
    node: str,
    input_dict: Mapping[str, Sequence[types.Artifact]],
    output_dict: Mapping[str, Sequence[types.Artifact]],
    *,
    files: Sequence[Json] = (),
) -> None:
    """Write a record beside every output: its type, facts and inputs, the node that made it, and files read.

    Args:
      node: id of the node that made the outputs.
      input_dict: the executor's inputs.
      output_dict: its outputs, with all facts already set as custom properties.
      files: `path` and `size` of every file that was read from outside of the pipeline.
    """
    inputs = [
        {"key": key, "type": artifact.type_name, "uri": artifact.uri}
        for key, artifacts in sorted(input_dict.items())
        for artifact in artifacts
    ]
    for key, artifacts in output_dict.items():
        for artifact in artifacts:
            record = {
                "node": node,
                "key": key,
                "type": artifact.type_name,
                "uri": artifact.uri,
                "facts": _facts(artifact),
                "inputs": inputs,
                "files": list(files),
            }
            with fileio.open(artifact.uri.rstrip("/") + RECORD_SUFFIX, "w") as file:
                file.write(json.dumps(record, indent=1, sort_keys=True) + "\n")


def _facts(artifact: types.Artifact) -> Json:
    """Return the custom properties that are numbers, booleans or texts (which may be JSON), unparsed."""
    properties = artifact.mlmd_artifact.custom_properties
    return {key: getattr(value, value.WhichOneof("value")) for key, value in properties.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return value.WhichOneof("value") in ("int_value", "double_value", "string_value", "bool_value")
