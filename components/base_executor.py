"""Does what every executor does: finds artifacts and parameters, makes output folders, records lineage."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from tfx import types
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.utils import io_utils

from components import component_spec as keys
from components import progress
from components.artifact_files import RECORD_SUFFIX
from components.column_summary import COLUMNS_FACT, rows_from_json
from embedding_core.errors import ConfigError
from embedding_core.schema import Json

# Writes a lineage record beside every output artifact, for when ML Metadata is not available.
#
# Vertex AI has no ML Metadata store to query, and a bucket outlives the cluster that filled it. So every executor
# writes `<uri>.lineage.json` beside each of its outputs. The file is not inside the output's folder, so that it does
# not change a digest over the output's files.


def record_lineage(
    node: str,
    input_dict: Mapping[str, Sequence[types.Artifact]],
    output_dict: Mapping[str, Sequence[types.Artifact]],
    *,
    files: Sequence[Json],
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


Artifacts: TypeAlias = dict[str, list[types.Artifact]]
Properties: TypeAlias = Json
"""Execution properties: texts and numbers. KFP returns whole numbers as floats."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """One execution of a component.

    Attributes:
      inputs: artifacts by key.
      outputs: artifacts by key.
      properties: the parameters of the component.
      files_read: for the lineage, `path` and `size` of every file that was read from outside of the pipeline; and
        `split`, if its rows are for one split alone.
    """

    inputs: Artifacts
    outputs: Artifacts
    properties: Properties
    files_read: list[Json] = dataclasses.field(default_factory=list)

    def uri(self, key: str) -> str:
        """Return the folder of an input that is one artifact."""
        return str(artifact_utils.get_single_uri(self.inputs[key]))

    def given_uris(self, *keys: str) -> dict[str, str]:
        """Return the folders of those inputs that are given, by key."""
        return {key: self.uri(key) for key in keys if self.inputs.get(key)}

    def output(self, key: str) -> Any:
        """Return an output that is one artifact; its folder exists."""
        artifact = artifact_utils.get_single_instance(self.outputs[key])
        fileio.makedirs(artifact.uri)
        return artifact

    def bless(self, *, blessed: bool, reason: str, file: str, figures: Json, **facts: str) -> None:
        """Write the output `blessing` of a component that judges a model.

        Args:
          blessed: whether the model may be pushed.
          reason: what was found, in sentences; "" if nothing was.
          file: name of the file with the figures.
          figures: JSON values.
          facts: more custom properties.
        """
        blessing = self.output(keys.BLESSING)
        with fileio.open(os.path.join(blessing.uri, file), "w") as opened:
            opened.write(json.dumps(figures, indent=1))
        blessing.set_int_custom_property("blessed", int(blessed))
        for name, text in {"reason": reason, **facts}.items():
            blessing.set_string_custom_property(name, text)

    def json(self, key: str) -> Any:
        """Return the value of a parameter that is JSON; None if it is not given.

        Raises:
          ConfigError: it is not JSON.
        """
        text = self.properties.get(key)
        try:
            return json.loads(text) if text else None
        except json.JSONDecodeError as error:
            raise ConfigError(f"`{key}` is {text!r}: it must be JSON ({error}).") from error

    def begin_rows(self, task: str, *splits: str) -> None:
        """Begin to count the rows of splits for the display of progress: all that our ExampleGen recorded."""
        facts = [examples.get_string_custom_property(COLUMNS_FACT) for examples in self.inputs[keys.EXAMPLES]]
        rows = [rows_from_json(fact).get(split, 0) for fact in facts if fact for split in splits]
        progress.begin(task, sum(rows) if all(facts) else None)

    def split_folders(self, key: str, split: str) -> list[str]:
        """Return the folders of one split of an input of examples."""
        return list(artifact_utils.get_split_uris(self.inputs[key], split))


class ComponentExecutor:
    """Adds to one of TFX's executors what every executor of this project does; list it first among the bases.

    A subclass sets `COMPONENT`, the component's name in the lineage, and defines `execute`.
    """

    COMPONENT: ClassVar[str]

    def execute(self, execution: Execution) -> None:
        """Read the inputs, and write the outputs with all their facts."""
        raise NotImplementedError

    def serves_another(self) -> bool:
        """Serve the process that executes, if this one is there for that; return whether it was."""
        return False

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: Properties) -> None:  # noqa: N802
        """Execute, and write the lineage beside every output; if this process serves another one, only that.

        Args:
          input_dict: artifacts by key of the component's spec.
          output_dict: artifacts by key.
          exec_properties: parameters by key.

        Raises:
          EmbeddingError: an error of the subclass's `execute`.
        """
        if self.serves_another():
            return
        execution = Execution(input_dict, output_dict, exec_properties)
        self.execute(execution)
        record_lineage(self.COMPONENT, input_dict, output_dict, files=execution.files_read)


def files_below(folders: Sequence[str]) -> list[str]:
    """Return the files of the folders, sorted by name."""
    return sorted(name for folder in folders for name in fileio.glob(io_utils.all_files_pattern(folder)))
