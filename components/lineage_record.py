"""Records beside every output what it was made of, for orchestrators whose metadata cannot be read.

Vertex AI has no ML Metadata to ask, and a bucket outlives the cluster that filled it. So every executor leaves
`<uri>.lineage.json` beside each of its outputs. It is not inside, so that a digest over the output's files stays the
same.
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
    """Write a record beside every output: its type, the node that made it, and its inputs.

    Args:
      node: id of the node that made them.
      input_dict: the executor's inputs.
      output_dict: its outputs, with all their facts already on them.
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
    """Return the custom properties as they are: numbers, and texts that may be JSON."""
    properties = artifact.mlmd_artifact.custom_properties
    return {key: getattr(value, value.WhichOneof("value")) for key, value in properties.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return value.WhichOneof("value") in ("int_value", "double_value", "string_value", "bool_value")
