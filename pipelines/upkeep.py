"""Keeps ML Metadata true: executions of dead runs are closed, and outputs that have changed since are not used.

TFX leaves both as they are. A run that was killed stays RUNNING for ever; and its cache serves an output as long as a
folder of that name stands there, whatever became of the files in it. Whoever calls `tidy` holds the pipeline
(`pipelines.work_dir.held`), so that an execution of it which is RUNNING belongs to a run that is dead.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as mlmd

__all__ = ["CONTENT", "Content", "Tidied", "read_content", "record_content", "tidy"]

CONTENT = "content"
"""Custom property of an artifact: a JSON object of `Content`."""

_SET_ASIDE = ".damaged"
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """What lies in an artifact's folder.

    Attributes:
      digest: sha256 over names and contents of all files, in order of their names.
      stamp: sha256 over names, sizes and times of change; while it is the same, the digest is taken to be so.
      size: bytes of all files.
      files: how many there are.
    """

    digest: str
    stamp: str
    size: int
    files: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tidied:
    """What was found and put right: ids of executions that were closed, and of artifacts that are gone or damaged."""

    closed: tuple[int, ...]
    lost: tuple[int, ...]


def read_content(folder: str) -> Content | None:
    """What lies in the folder (or is the file), or None where there is none, or where it is remote."""
    if not os.path.exists(folder):
        return None
    stamp, files, digest = _stamp(folder), list(_files(folder)), hashlib.sha256()
    for name, path in files:
        digest.update(f"{name}\0{_digest(path)}\n".encode())
    size = sum(os.path.getsize(path) for _, path in files)
    return Content(digest=digest.hexdigest(), stamp=stamp, size=size, files=len(files))


def record_content(store: Any, execution: int) -> None:
    """Record on every output of a finished execution what lies in its folder; the state of the cache rests on it."""
    events = store.get_events_by_execution_ids([execution])
    outputs = store.get_artifacts_by_id([event.artifact_id for event in events if event.type == mlmd.Event.OUTPUT])
    changed = []
    for artifact in outputs:
        content = read_content(artifact.uri)
        if content is not None:
            text = json.dumps(dataclasses.asdict(content), sort_keys=True)
            artifact.custom_properties[CONTENT].string_value = text
            changed.append(artifact)
    if changed:
        store.put_artifacts(changed)


def tidy(store: Any, pipeline: str, root: str) -> Tidied:
    """Close what dead runs of the pipeline left RUNNING, and set damaged outputs aside.

    An execution that is closed becomes FAILED, and its half-written outputs, which no metadata names, are removed. An
    output whose files are gone or changed is no longer LIVE; what is left of it is renamed to `<uri>.damaged`, so that
    TFX's cache does not find it.

    Args:
      store: the metadata, open for writing.
      pipeline: name of the pipeline, which the caller holds.
      root: folder of the pipeline's outputs.
    """
    context = store.get_context_by_type_and_name("pipeline", pipeline)
    if context is None:
        return Tidied(closed=(), lost=())
    return Tidied(closed=_close_stale(store, context.id, root), lost=_set_lost_aside(store, context.id))


def _close_stale(store: Any, context: int, root: str) -> tuple[int, ...]:
    open_states = (mlmd.Execution.NEW, mlmd.Execution.RUNNING)
    stale = [one for one in store.get_executions_by_context(context) if one.last_known_state in open_states]
    for execution in stale:
        execution.last_known_state = mlmd.Execution.FAILED
        execution.custom_properties["closed_because"].string_value = "its run ended without a word"
        # TFX writes the outputs of execution 7 to <root>/<node>/<output>/7.
        for folder in glob.glob(os.path.join(glob.escape(root), "*", "*", str(execution.id))):
            shutil.rmtree(folder, ignore_errors=True)
    if stale:
        store.put_executions(stale)
    return tuple(one.id for one in stale)


def _set_lost_aside(store: Any, context: int) -> tuple[int, ...]:
    lost = []
    for artifact in store.get_artifacts_by_context(context):
        if artifact.state != mlmd.Artifact.LIVE or CONTENT not in artifact.custom_properties:
            continue
        recorded = Content(**json.loads(artifact.custom_properties[CONTENT].string_value))
        if not _is_as_recorded(artifact.uri, recorded):
            _rename_away(artifact.uri)
            artifact.state = mlmd.Artifact.DELETED
            lost.append(artifact)
    if lost:
        store.put_artifacts(lost)
    return tuple(one.id for one in lost)


def _is_as_recorded(uri: str, recorded: Content) -> bool:
    if not os.path.exists(uri):
        return False
    if _stamp(uri) == recorded.stamp:
        return True
    found = read_content(uri)  # copied or touched: what counts is what is in the files
    return found is not None and found.digest == recorded.digest


def _stamp(folder: str) -> str:
    stamp = hashlib.sha256()
    for name, path in _files(folder):
        facts = os.stat(path)
        stamp.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return stamp.hexdigest()


def _rename_away(uri: str) -> None:
    """Rename what is left to a name that no earlier remains have."""
    if not os.path.exists(uri):
        return
    place, number = uri.rstrip("/") + _SET_ASIDE, 1
    while os.path.exists(place):
        place, number = f"{uri.rstrip('/')}{_SET_ASIDE}.{number}", number + 1
    os.rename(uri, place)


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """Names below the folder, in order, and paths; of a single file, its own."""
    if os.path.isfile(folder):
        yield os.path.basename(folder), folder
        return
    paths = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    yield from sorted((os.path.relpath(path, folder), path) for path in paths if os.path.isfile(path))


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
