"""Defines the executor of EmbeddingPusher, which proves and publishes the evaluated model, and records facts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
from tfx import types
from tfx.dsl.io import fileio
from tfx.utils import io_utils

from components import component_spec as keys
from components import progress
from components.base_executor import ComponentExecutor, Execution
from components.compat import PusherExecutor
from components.pusher.proof import Sources, Trained, edges_of, load_trained, prove, rows_below
from components.pusher.publish import PushForm
from components.pusher.push_section import FORMS
from components.pusher.served import Publication, copy_model, find_published, identity_of, model_digests
from embedding_core.errors import CheckpointError, NonfiniteError
from embedding_core.rooms import hooks
from embedding_core.schema import Json
from embedding_core.serving import public_facts
from embedding_core.serving_config import TopK, dtypes_of_tables
from embedding_core.storage import is_remote, scratch_folder

WARMUP = "assets.extra/tf_serving_warmup_requests"
"""The file of a version with the requests that TensorFlow Serving sends before the version counts as loaded."""
_WARMUP_BATCHES = (1, 32)
_PROVEN_WITH = (keys.TOLERANCE, keys.PARITY_ROWS, keys.PARITY_SPLIT, keys.ROWS_DTYPE, keys.TOP_K, *FORMS)

_log = logging.getLogger(__name__)


class Executor(ComponentExecutor, PusherExecutor):
    """Pushes a serving-only model after verifying that it agrees with the trained and the evaluated model."""

    COMPONENT = "EmbeddingPusher"

    def execute(self, execution: Execution) -> None:
        """Push the model, or record on the artifact why it was not pushed.

        If the model is blessed, the digests of its vocabularies are recorded in either case.

        Raises:
          EmbeddingError: an input is damaged or from another run, or the destination is not writable.
        """
        pushed = execution.output(keys.PUSHED_MODEL)
        missed = self._missed(execution)
        if missed:
            self._refuse(pushed, f"the model is not blessed: {' '.join(missed)}")
            return
        form = _chosen_form(execution)
        _report(0, "restoring what was trained")
        trained = load_trained(_sources(execution))
        _put(pushed, vocabularies=dict(trained.digests), vocabularies_digest=_one_digest(trained.digests))
        with _local(pushed.uri) as folder:
            try:
                published, facts = self._push(folder, trained, execution, form)
            except _NotPushedError as error:
                self._refuse(pushed, str(error), **error.figures)
                _clear(folder)
                return
        _report(4, f"version {published.version}")
        self._MarkPushed(pushed, pushed_destination=published.path, pushed_version=str(published.version))
        _put(pushed, model_digest=published.digest, parity=facts["parity"], reason="")
        _put(pushed, **form.properties(published, facts))

    def _missed(self, execution: Execution) -> list[str]:
        """Return why the model is not blessed, the reason of each gate that refused it; empty if it is blessed."""
        reasons = [] if self.CheckBlessing(execution.inputs) else ["the Evaluator's thresholds were not met."]
        for key in sorted(key for key in execution.inputs if key.endswith(f"_{keys.BLESSING}")):
            for blessing in execution.inputs[key] if key != keys.MODEL_BLESSING else ():
                if not self.CheckBlessing({keys.MODEL_BLESSING: [blessing]}):
                    reasons.append(blessing.get_string_custom_property("reason") or f"`{key}` is a refusal.")
        return reasons

    def _push(self, folder: str, trained: Trained, execution: Execution, form: PushForm) -> tuple[Publication, Json]:
        """Copy or export the model to `folder`, and publish it, only if it passes the comparison.

        Returns what was published, and the facts of its manifest. The evaluated model is copied if it has the form that
        is to be served; another form (rounded rows, other settings of `top_k`, `form.export`) is exported.

        If a previous execution published the same model but ended before that was recorded, its version is used.
        """
        properties, evaluated = execution.properties, self.GetModelPath(execution.inputs)
        examples = execution.split_folders(keys.EXAMPLES, properties.get(keys.PARITY_SPLIT) or "eval")
        sources = {**dataclasses.asdict(_sources(execution)), "evaluated": evaluated, "examples": examples}
        judged = model_digests(evaluated)
        identity = identity_of(sources, {key: properties.get(key) for key in _PROVEN_WITH}, judged)
        top_k = TopK.from_mapping(execution.json(keys.TOP_K) or {})
        dtypes = dtypes_of_tables(
            execution.json(keys.ROWS_DTYPE) or "float32", [table.name for table in trained.config.tables]
        )
        destination = properties[keys.PUSH_DESTINATION]
        known = find_published(destination, identity)
        if known is not None:
            _report(1, f"version {known[0].version} is this model already")
            if known[0].update:
                trained.export(folder, dtypes, top_k, form.export)
            else:
                copy_model(known[0].path, folder)
            return known
        rows = rows_below(examples, int(properties.get(keys.PARITY_ROWS) or 1000))
        copied = trained.is_served_as_evaluated(dtypes, top_k, form.export)
        facts: Json = {
            "top_k": top_k.to_mapping(),
            "rows_dtype": dtypes,
            "vocabularies": dict(trained.digests),
            "public": public_facts(trained.config),
            "sources": sources,
            "identity": identity,
        }

        def check(copy: str) -> Json:
            if copied and model_digests(copy) != judged:
                raise CheckpointError(
                    f"the copy of {evaluated!r} is not the model that was evaluated: check the disk, and push again."
                )
            _report(2, "comparing with training")
            scored, tolerance = None if copied else evaluated, float(properties[keys.TOLERANCE])
            proof = prove(copy, scored, trained, rows, tolerance, top_k, dtypes)
            facts["parity"] = proof.to_dict()
            if not proof.passed:
                raise _NotPushedError(proof.reason, parity=facts["parity"])
            _report(3, "publishing")
            return facts

        _report(1, "copying" if copied else "exporting")
        if copied:
            copy_model(evaluated, folder)
        else:
            try:
                trained.export(folder, dtypes, top_k, form.export)
            except NonfiniteError as error:
                raise _NotPushedError(str(error), nonfinite_rows=error.rows) from error
        write_warmup(folder, trained.requests(trained.synthetic_rows(max(_WARMUP_BATCHES))))

        def requests() -> Mapping[str, Any]:
            every = [*rows, *(edge.row for edge in edges_of(trained, rows))]
            return {**trained.requests(every), "embeddings": every}

        keep_last = properties.get(keys.KEEP_LAST)
        return form.push(folder, destination, check=check, keep_last=keep_last, requests=requests)

    def _refuse(self, pushed: types.Artifact, reason: str, **figures: Json) -> None:
        """Mark the artifact as not pushed, and record why."""
        _log.info("nothing is pushed: %s", reason)  # not a warning: the report shows it
        self._MarkNotPushed(pushed)
        _put(pushed, reason=reason, **figures)


class _NotPushedError(Exception):
    """Says why a model is not pushed, with the figures measured."""

    def __init__(self, reason: str, **figures: Json) -> None:
        super().__init__(reason)
        self.figures = figures


def _chosen_form(execution: Execution) -> PushForm:
    settings = {key: execution.json(key) for key in FORMS}
    forms = (room.push_form(settings) for room in hooks("components", "push_form"))
    return next((form for form in forms if form is not None), PushForm())


def write_warmup(saved_model: str, requests: Mapping[str, Json]) -> None:
    """Write requests to a SavedModel, one for each signature and number of rows, as TFRecords of `PredictionLog`.

    Without them the first request to a signature waits for its optimization.

    Args:
      saved_model: its folder.
      requests: for each signature, arrays `[rows, ...]` by input name; rows are repeated if there are too few. Every
        published version contains them, so they must be synthetic.
    """
    path = Path(saved_model, WARMUP)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests.items():
            for batch in _WARMUP_BATCHES:
                request = predict_pb2.PredictRequest()
                request.model_spec.signature_name = signature
                for name, value in inputs.items():
                    rows = value[[place % len(value) for place in range(batch)]]
                    request.inputs[name].CopyFrom(tf.make_tensor_proto(rows))
                log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
                writer.write(log.SerializeToString(deterministic=True))


def _report(done: int, what: str) -> None:
    progress.report("prove and push", done, 4, unit="steps", detail=what)


def _sources(execution: Execution) -> Sources:
    return Sources(
        **execution.given_uris(keys.MODEL_RUN, keys.VOCABULARIES, keys.TABLE_CONFIGS, keys.TRANSFORM_GRAPH, keys.SCHEMA)
    )


def _put(artifact: types.Artifact, **facts: Any) -> None:
    """Record facts: text as it is, anything else as JSON."""
    for key, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        artifact.set_string_custom_property(key, text)


def _one_digest(digests: Mapping[str, str]) -> str:
    """Compute one sha256 over the names and digests of all vocabularies."""
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def _clear(folder: str) -> None:
    for name in fileio.listdir(folder):
        path = os.path.join(folder, name)
        (fileio.rmtree if fileio.isdir(path) else fileio.remove)(path)


@contextlib.contextmanager
def _local(uri: str) -> Iterator[str]:
    """Yield a local folder for the content of `uri`: itself, or a scratch folder that is copied there at the end."""
    if not is_remote(uri):
        yield uri
        return
    with scratch_folder("push") as folder:
        yield folder
        io_utils.copy_dir(folder, uri)
