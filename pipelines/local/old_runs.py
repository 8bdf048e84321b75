"""Removes the files and reports of old runs of a pipeline; ML Metadata keeps their lineage."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil

from ml_metadata import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd

from embedding_core.storage import read_json
from pipelines.local.metadata_repair import is_output, newest_execution

_RUN = "pipeline_run"
_REPORT = re.compile(r"(?P<version>\d+)(-delta-\d+)?|refused-.+")


def remove_old_runs(store: MetadataStore, pipeline: str, root: str, keep: int, pushed: int | None = None) -> int:
    """Remove the files of artifacts that no run that is kept made, read or took from the cache.

    The newest runs are kept, and those that made or used the ModelRun of the pushed version: all runs since may have
    been refused, and the next one starts from that version.

    The artifacts become DELETED in ML Metadata; their records of lineage stay beside where they were. An artifact is
    marked before its files are removed: if the process is killed in between, the files stay, and nothing uses them.

    Args:
      store: the metadata, open for writing; the caller has the lock of the pipeline.
      pipeline: name of the pipeline.
      root: folder of the pipeline's outputs; artifacts outside of it are kept.
      keep: number of the newest runs whose artifacts are kept.
      pushed: id of the ModelRun of the pushed version; None if nothing was pushed.

    Returns:
      The number of artifacts whose files were removed.
    """
    context = store.get_context_by_type_and_name("pipeline", pipeline)
    if context is None:
        return 0
    runs = sorted(one.id for one in store.get_children_contexts_by_context(context.id) if one.type == _RUN)
    of_pushed = {one.id for one in store.get_contexts_by_artifact(pushed)} if pushed is not None else set()
    chosen = [*runs[-keep:], *of_pushed.intersection(runs)]
    kept = {one.id for run in chosen for one in store.get_artifacts_by_context(run)}
    inside = os.path.join(os.path.abspath(root), "")
    old = [one for one in store.get_artifacts_by_context(context.id) if is_output(one) and one.id not in kept]
    old = [one for one in old if os.path.abspath(one.uri).startswith(inside)]
    for artifact in old:
        artifact.state = mlmd.Artifact.DELETED
    if old:
        store.put_artifacts(old)
    for artifact in old:
        shutil.rmtree(artifact.uri, ignore_errors=True)
    for folder in glob.iglob(os.path.join(glob.escape(root), "*", ".system", "*", "*")):
        with contextlib.suppress(OSError):  # it has files, or is not a folder
            os.rmdir(folder)  # TFX leaves empty ones for each execution
    return len(old)


def remove_old_reports(store: MetadataStore, folder: str, keep: int, version: int | None) -> int:
    """Remove old reports.

    Args:
      store: the metadata, whose ids of executions are the order of the runs.
      folder: folder of the reports of all versions and of all refused runs.
      keep: number of the newest reports that are kept.
      version: number of the newest version, whose reports are kept too, those of its deltas included; None if nothing
        was pushed.

    Returns:
      The number of reports that were removed.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    reports = {name: match for name in names if (match := _REPORT.fullmatch(name))}
    newest = newest_execution(store)
    old = sorted(reports, key=lambda name: _execution(os.path.join(folder, name), newest))[:-keep]
    old = [name for name in old if reports[name]["version"] != str(version)]
    for name in old:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    return len(old)


def _execution(report: str, newest: int) -> int:
    """Return the id of the last execution of a report's run.

    It is 0 if the report is incomplete, since a killed process was removing it, or if it is of another store: the
    newest execution of this one is `newest`.
    """
    try:
        nodes = read_json(os.path.join(report, "report.json"))["nodes"]
    except (OSError, ValueError, KeyError):
        return 0
    last = max((node.get("execution") or 0 for node in nodes), default=0)
    return last if last <= newest else 0
