"""Repairs ML Metadata before a run: closes the executions of dead runs, and removes changed outputs from the cache.

TFX does neither. A run that was killed stays RUNNING for ever, and TFX's cache serves an output as long as a folder of
that name exists, even if its files changed. The caller of `repair_metadata` has the pipeline's lock
(`pipelines.local.work_dir.run_lock`), so a RUNNING execution of that pipeline belongs to a dead run.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator

from ml_metadata import ListOptions, MetadataStore, OrderByField
from ml_metadata.proto import metadata_store_pb2 as mlmd

from components.artifact_files import RECORD_SUFFIX
from embedding_core.storage import file_digest, file_names_below, free_name
from pipelines.lineage.ancestors import ROLLBACK

# Computes digests of the files of artifacts, and compares them with those in the metadata to find damage.

CONTENT = "content"
"""Custom property of an artifact that holds its `Content` as JSON."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """What an artifact's folder contains.

    Attributes:
      digest: sha256 over names and contents of all files, in order of their names.
      stamp: sha256 over names, sizes and modification times of all files, in the same order.
      size: bytes of all files.
      files: number of files.
    """

    digest: str
    stamp: str
    size: int
    files: int


def read_content(folder: str) -> Content | None:
    """Read every file of a folder, or a single file; return None if the path does not exist or is remote."""
    if not os.path.exists(folder):
        return None
    stamp = _stamp(folder)
    files = [(name, file_digest(path)) for name, path in _files(folder)]
    digest = hashlib.sha256("".join(f"{name}\0{entry['sha256']}\n" for name, entry in files).encode())
    size = sum(entry["size"] for _, entry in files)
    return Content(digest=digest.hexdigest(), stamp=stamp, size=size, files=len(files))


def note_content(artifact: mlmd.Artifact) -> bool:
    """Set the property `CONTENT` to what the artifact's folder contains now; return whether it could be read."""
    content = read_content(artifact.uri)
    if content is not None:
        artifact.custom_properties[CONTENT].string_value = json.dumps(dataclasses.asdict(content), sort_keys=True)
    return content is not None


def recorded_content(artifact: mlmd.Artifact) -> Content | None:
    """Return the content of an artifact as the metadata recorded it; None if it was not recorded.

    If the record cannot be parsed, because the store is damaged, the result differs from every folder's content.
    """
    if CONTENT not in artifact.custom_properties:
        return None
    try:
        return Content(**json.loads(artifact.custom_properties[CONTENT].string_value))
    except (ValueError, TypeError):
        return Content(digest="", stamp="", size=0, files=0)


def is_as_recorded(uri: str, recorded: Content, *, by_digest: bool) -> bool:
    """Return whether the folder still contains what was recorded.

    Args:
      uri: address of the folder.
      recorded: its content as the metadata recorded it.
      by_digest: whether to read every byte. If false, names, sizes and modification times are compared first, and the
        files are read only if these differ. Only reading finds damage that changes neither size nor time.
    """
    if not os.path.exists(uri):
        return False
    if not by_digest and _stamp(uri) == recorded.stamp:
        return True
    content = read_content(uri)  # the files may have been copied or touched
    return content is not None and content.digest == recorded.digest


def _stamp(folder: str) -> str:
    stamp = hashlib.sha256()
    for name, path in _files(folder):
        facts = os.stat(path)
        stamp.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return stamp.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the name below the folder and the path of every file, sorted; a single file has its base name."""
    if os.path.isfile(folder):
        yield os.path.basename(folder), folder
        return
    paths = ((name, os.path.join(folder, name)) for name in file_names_below(folder))
    yield from ((name, path) for name, path in paths if os.path.isfile(path))


_SET_ASIDE = ".damaged"
_LEFT_OVER = ".lost"
_OUTPUTS = ("*", "*"), ("*", ".system", "executor_execution")
"""Folders that TFX writes below the root: <root>/<node>/<output>/7 for the outputs of execution 7, and
<root>/<node>/.system/executor_execution/7 for what its parts pass to each other."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repairs:
    """What a user has to know of the repairs.

    Attributes:
      lost: ids of artifacts that are missing or damaged.
      left_over: folder that the outputs of a lost store were moved to, or None.
    """

    lost: tuple[int, ...] = ()
    left_over: str | None = None


def record_content(store: MetadataStore, execution: int) -> None:
    """Record the content of those outputs of a finished execution whose content was not recorded before."""
    events = store.get_events_by_execution_ids([execution])
    outputs = store.get_artifacts_by_id([event.artifact_id for event in events if event.type == mlmd.Event.OUTPUT])
    _record(store, outputs)


def _record(store: MetadataStore, artifacts: Iterable[mlmd.Artifact]) -> None:
    changed = [
        artifact for artifact in artifacts if CONTENT not in artifact.custom_properties and note_content(artifact)
    ]
    if changed:
        store.put_artifacts(changed)


def repair_metadata(store: MetadataStore, pipeline: str, root: str) -> Repairs:
    """Close what dead runs of the pipeline left RUNNING, and set damaged outputs aside.

    An execution that is closed becomes FAILED, and its half-written outputs, which no metadata names, are removed. An
    output whose files are missing or changed loses its state LIVE; its folder is renamed to `<uri>.damaged`, so that
    TFX's cache does not find it. If the content of an output was not recorded, it is recorded now: a run of an
    earlier release leaves such outputs if it is killed between publishing and recording. Outputs with an execution id
    above the highest in the store belong to a lost store: they are moved away, because TFX would write into their
    folders.

    Args:
      store: the metadata, open for writing.
      pipeline: name of the pipeline, whose lock the caller has.
      root: folder of the pipeline's outputs.
    """
    left_over = _move_left_over(store, root)
    context = store.get_context_by_type_and_name("pipeline", pipeline)
    if context is None:
        return Repairs(left_over=left_over)
    _close_stale(store, context.id, root)
    live = [artifact for artifact in store.get_artifacts_by_context(context.id) if is_output(artifact)]
    _record_imported_again(store, live)
    damaged = [artifact for artifact in live if _is_damaged(artifact)]
    for artifact in damaged:
        set_aside(store, artifact)
    _record(store, live)
    return Repairs(lost=tuple(artifact.id for artifact in damaged), left_over=left_over)


def is_output(artifact: mlmd.Artifact) -> bool:
    """Return whether the artifact is live, and only a run of the pipeline replaces or removes its files.

    The files of a version that a rollback published are in the serving folder: servers read them, `keep-last` removes
    them, and the run that finds them damaged pushes another version before it takes them away.
    """
    return bool(artifact.state == mlmd.Artifact.LIVE) and ROLLBACK not in artifact.custom_properties


def newest_execution(store: MetadataStore) -> int:
    """Return the highest id of an execution; 0 if the store has none."""
    last = store.get_executions(list_options=ListOptions(limit=1, order_by=OrderByField.ID, is_asc=False))
    return max((execution.id for execution in last), default=0)


def _move_left_over(store: MetadataStore, root: str) -> str | None:
    """Move away outputs with execution ids above the highest in the store: new outputs would be mixed with them."""
    newest = newest_execution(store)
    paths = [path for path in _numbered(root) if int(os.path.basename(path)) > newest]
    if not paths:
        return None
    target_root = free_name(root.rstrip("/") + _LEFT_OVER)
    for path in (file for each in paths for file in (each, each + RECORD_SUFFIX) if os.path.exists(file)):
        target = os.path.join(target_root, os.path.relpath(path, root))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(path, target)
    return target_root


def _numbered(root: str) -> Iterator[str]:
    for levels in _OUTPUTS:
        for path in glob.iglob(os.path.join(glob.escape(root), *levels, "*")):
            name = os.path.basename(path)
            if name.isascii() and name.isdigit():
                yield path


def _close_stale(store: MetadataStore, context: int, root: str) -> None:
    open_states = (mlmd.Execution.NEW, mlmd.Execution.RUNNING)
    stale = [
        execution for execution in store.get_executions_by_context(context) if execution.last_known_state in open_states
    ]
    for execution in stale:
        execution.last_known_state = mlmd.Execution.FAILED
        execution.custom_properties["closed_because"].string_value = "the run's process died"
        for levels in _OUTPUTS:
            for folder in glob.glob(os.path.join(glob.escape(root), *levels, str(execution.id))):
                shutil.rmtree(folder, ignore_errors=True)
                if os.path.exists(folder + RECORD_SUFFIX):
                    os.remove(folder + RECORD_SUFFIX)
    if stale:
        store.put_executions(stale)


def _record_imported_again(store: MetadataStore, live: Iterable[mlmd.Artifact]) -> None:
    """Record the new content of imported folders that changed: they belong to the user, who may replace them."""
    changed = []
    for artifact in filter(is_imported, live):
        recorded = recorded_content(artifact)
        if recorded and os.path.exists(artifact.uri) and not is_as_recorded(artifact.uri, recorded, by_digest=False):
            del artifact.custom_properties[CONTENT]
            changed.append(artifact)
    _record(store, changed)


def _is_damaged(artifact: mlmd.Artifact) -> bool:
    recorded = recorded_content(artifact)
    if recorded is None or is_imported(artifact):
        return False
    return not is_as_recorded(artifact.uri, recorded, by_digest=False)


def is_imported(artifact: mlmd.Artifact) -> bool:
    """Return whether an Importer brought the artifact in from outside; then no node can make it again."""
    return "is_external" in artifact.custom_properties and bool(artifact.custom_properties["is_external"].int_value)


def set_aside(store: MetadataStore, artifact: mlmd.Artifact) -> bool:
    """Remove a damaged artifact from the cache: its state becomes DELETED, and its files get another name.

    Args:
      store: the metadata, open for writing.
      artifact: as ML Metadata has it.

    Returns:
      Whether it was set aside; an imported one, which no node can make again, is left as it is.
    """
    if is_imported(artifact):
        return False
    if os.path.exists(artifact.uri):
        uri = artifact.uri.rstrip("/")
        aside = free_name(uri + _SET_ASIDE)
        os.rename(uri, aside)
        if os.path.exists(uri + RECORD_SUFFIX):  # the record of its lineage goes with it
            os.rename(uri + RECORD_SUFFIX, f"{aside}.record")
    artifact.state = mlmd.Artifact.DELETED
    store.put_artifacts([artifact])
    return True
