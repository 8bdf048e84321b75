"""The executor of EmbeddingPusher: export, proof, publication, and what the artifact says of them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from tfx import types
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.utils import io_utils

from components import progress
from components.compat import PusherExecutor
from components.pusher.proof import Proof, prove, rows_below
from components.pusher.publish import Publication, publish
from components.pusher.served import find_published, identity_of
from components.pusher.trained import Sources, Trained, load_trained
from components.pusher.warmup import write_warmup
from components.record import record_lineage
from embedding_core.errors import NonfiniteError, ParityError
from embedding_core.storage import scratch_folder

__all__ = ["Executor"]

MODEL_KEY = "model"
MODEL_RUN_KEY = "model_run"
EXAMPLES_KEY = "examples"
VOCABULARIES_KEY = "vocabularies"
TABLE_CONFIGS_KEY = "table_configs"
TRANSFORM_GRAPH_KEY = "transform_graph"
SCHEMA_KEY = "schema"
MODEL_BLESSING_KEY = "model_blessing"
QUALITY_BLESSING_KEY = "quality_blessing"
PUSH_DESTINATION_KEY = "push_destination"
TOLERANCE_KEY = "tolerance"
KEEP_LAST_KEY = "keep_last"
PARITY_ROWS_KEY = "parity_rows"
PARITY_SPLIT_KEY = "parity_split"
REPUBLISH_KEY = "republish"
ROWS_DTYPE_KEY = "rows_dtype"
PUSHED_MODEL_KEY = "pushed_model"

_WARMUP_ROWS = 32
_PROVEN_WITH = (TOLERANCE_KEY, PARITY_ROWS_KEY, PARITY_SPLIT_KEY, ROWS_DTYPE_KEY)

_log = logging.getLogger(__name__)


class Executor(PusherExecutor):
    """Pushes a serving-only model after proving that it computes what was trained and evaluated."""

    def Do(  # noqa: N802
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Push, or say on the artifact why not; in either case record what it is of.

        Args:
          input_dict: `model`, `model_run`, `examples`, `vocabularies`, `table_configs`, and perhaps
            `transform_graph`, `schema`, `model_blessing` and `quality_blessing`.
          output_dict: `pushed_model`, one artifact.
          exec_properties: `push_destination`, `tolerance`, `keep_last`, `parity_rows`, `parity_split`.

        Raises:
          EmbeddingError: an input is damaged or of another run, or the destination cannot be written.
        """
        pushed = artifact_utils.get_single_instance(output_dict[PUSHED_MODEL_KEY])
        fileio.makedirs(pushed.uri)
        self._push_or_refuse(pushed, input_dict, exec_properties)
        record_lineage("EmbeddingPusher", input_dict, output_dict)

    def _push_or_refuse(
        self, pushed: types.Artifact, input_dict: dict[str, list[types.Artifact]], exec_properties: dict[str, Any]
    ) -> None:
        missed = self._missed(input_dict)
        if missed:
            self._refuse(pushed, f"the model is not blessed: {' '.join(missed)}")
            return
        _report(0, "restoring what was trained")
        trained = load_trained(_sources(input_dict))
        _put(pushed, vocabularies=dict(trained.digests), vocabularies_digest=_one_digest(trained.digests))
        with _local(pushed.uri) as folder:
            try:
                published, parity = self._push(folder, trained, input_dict, exec_properties)
            except _NotPushedError as error:
                self._refuse(pushed, str(error), **error.figures)
                _clear(folder)
                return
        _report(4, f"version {published.version}")
        self._MarkPushed(pushed, pushed_destination=published.path, pushed_version=str(published.version))
        _put(pushed, model_digest=published.digest, parity=parity, reason="")

    def _missed(self, input_dict: dict[str, list[types.Artifact]]) -> list[str]:
        """What the model lacks to be pushed, a sentence for each of its judges."""
        found = [] if self.CheckBlessing(input_dict) else ["the Evaluator's thresholds were not met."]
        for blessing in input_dict.get(QUALITY_BLESSING_KEY, ()):
            if not self.CheckBlessing({MODEL_BLESSING_KEY: [blessing]}):
                found.append(blessing.get_string_custom_property("reason") or "QualityGate's rules were not met.")
        return found

    def _push(
        self,
        folder: str,
        trained: Trained,
        input_dict: dict[str, list[types.Artifact]],
        properties: Mapping[str, Any],
    ) -> tuple[Publication, dict[str, Any]]:
        """Export into `folder` and publish a copy; it gets its version only if it agrees with training.

        A version that is already this one was published by an execution that ended before it was recorded: it is
        taken as it is.
        """
        destination = properties[PUSH_DESTINATION_KEY]
        sources = {
            **dataclasses.asdict(_sources(input_dict)),
            "evaluated": self.GetModelPath(input_dict),
            "examples": _folders(input_dict, properties),
        }
        settings = {key: properties.get(key) for key in _PROVEN_WITH}
        identity = identity_of(sources, settings, self.GetModelPath(input_dict))
        known = find_published(destination, identity)
        if known is not None:
            _report(1, f"version {known[0].version} is this model already")
            io_utils.copy_dir(known[0].path, folder)
            return known[0], known[1]["parity"]
        rows = rows_below(_folders(input_dict, properties), int(properties.get(PARITY_ROWS_KEY) or 1000))
        tolerance = float(properties[TOLERANCE_KEY])
        measured: list[Proof] = []

        def check(copy: str) -> dict[str, Any]:
            _report(2, "comparing with training")
            measured.append(prove(copy, self.GetModelPath(input_dict), trained, rows, tolerance))
            if not measured[0].report.passed:
                raise ParityError(measured[0].report.reason)
            _report(3, "publishing")
            return {
                "parity": measured[0].to_dict(),
                "vocabularies": dict(trained.digests),
                "sources": sources,
                "identity": identity,
            }

        keep_last = properties.get(KEEP_LAST_KEY)
        try:
            _report(1, "exporting")
            trained.export(folder, properties.get(ROWS_DTYPE_KEY) or "float32")
            write_warmup(folder, trained.requests(trained.synthetic_rows(_WARMUP_ROWS)))
            published = publish(folder, destination, check=check, keep_last=keep_last)
        except NonfiniteError as error:
            raise _NotPushedError(str(error), nonfinite_rows=error.rows) from error
        except ParityError as error:
            if not measured:  # it could not be scored at all: an error of this run, which no cache may repeat
                raise
            raise _NotPushedError(str(error), parity=measured[0].to_dict()) from error
        return published, measured[0].to_dict()

    def _refuse(self, pushed: types.Artifact, reason: str, **figures: Mapping[str, Any]) -> None:
        """Nothing is pushed, and the artifact says why."""
        _log.info("nothing is pushed: %s", reason)  # the report says it aloud
        self._MarkNotPushed(pushed)
        _put(pushed, reason=reason, **figures)


class _NotPushedError(Exception):
    """Why a model is not pushed, with the figures measured."""

    def __init__(self, reason: str, **figures: Mapping[str, Any]) -> None:
        super().__init__(reason)
        self.figures = figures


def _report(done: int, what: str) -> None:
    progress.report("prove and push", done, 4, unit="steps", detail=what)


def _sources(input_dict: Mapping[str, list[types.Artifact]]) -> Sources:
    keys = (MODEL_RUN_KEY, VOCABULARIES_KEY, TABLE_CONFIGS_KEY, TRANSFORM_GRAPH_KEY, SCHEMA_KEY)
    return Sources(**{key: artifact_utils.get_single_uri(input_dict[key]) for key in keys if input_dict.get(key)})


def _folders(input_dict: Mapping[str, list[types.Artifact]], properties: Mapping[str, Any]) -> list[str]:
    """Where the rows are that are compared: of the split that training did not see."""
    split = properties.get(PARITY_SPLIT_KEY) or "eval"
    return list(artifact_utils.get_split_uris(input_dict[EXAMPLES_KEY], split))


def _put(artifact: types.Artifact, **facts: Any) -> None:
    """Record facts: text as it is, anything else as JSON."""
    for key, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        artifact.set_string_custom_property(key, text)


def _one_digest(digests: Mapping[str, str]) -> str:
    """One sha256 over all vocabularies, names included."""
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def _clear(folder: str) -> None:
    for name in fileio.listdir(folder):
        path = os.path.join(folder, name)
        (fileio.rmtree if fileio.isdir(path) else fileio.remove)(path)


@contextlib.contextmanager
def _local(uri: str) -> Iterator[str]:
    """A local folder for what ends up at `uri`: itself, or one that is copied there at the end."""
    if "://" not in uri:
        yield uri
        return
    with scratch_folder("push") as folder:
        yield folder
        io_utils.copy_dir(folder, uri)
