"""Prepares and locks the work_dir, one run at a time, and removes the files of old runs."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
from collections.abc import Iterator

from ml_metadata import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd

from embedding_core.errors import ConfigError
from embedding_core.storage import locked_file, open_lock_file, read_json, umask_of
from pipelines.config import PipelineConfig
from pipelines.config.metadata_server import MetadataServer, is_server
from pipelines.local.metadata_repair import is_output, newest_execution
from pipelines.local.metadata_store import SCHEMA_VERSION, check_store, remove_dangling, upgrade

REPORTS = "reports"
"""Folder in the work_dir that holds the report of every version and of every refused run."""


class InUseError(ConfigError):
    """Another command has the lock of the work_dir, or of the pipeline's name."""


_MASKS = {"owner": 0o077, "group": 0o027}


@contextlib.contextmanager
def file_permissions(config: PipelineConfig) -> Iterator[None]:
    """Apply `permissions` to the files and folders that the block creates; existing ones keep theirs."""
    mask = _MASKS.get(config.permissions)
    with contextlib.nullcontext() if mask is None else umask_of(mask):
        yield


def prepare(config: PipelineConfig) -> None:
    """Make the work_dir and the folder of the metadata, if they are missing.

    Raises:
      ConfigError: one of them cannot be made, or cannot be written to.
    """
    with file_permissions(config):
        _prepare("work_dir", config.work_dir, _work_dir_lock(config))
        if not is_server(config.metadata_path):
            _prepare("metadata", os.path.dirname(config.metadata_path), _metadata_lock(config))


def ready_metadata(config: PipelineConfig) -> str | None:
    """Check the metadata, remove what a full disk left in it, and upgrade it if an earlier release wrote it.

    Returns:
      The path of the backup that was made before the upgrade; None if there was nothing to upgrade.

    Raises:
      StorageError: the metadata is damaged, a newer release wrote it, or it cannot be written to.
      ConfigError: the metadata needs the upgrade, and another run uses it.
    """
    version = check_store(config.metadata_path)
    if version is None:
        return None
    if version == SCHEMA_VERSION:
        if not is_server(config.metadata_path):
            remove_dangling(config.metadata_path)
        return None
    with run_lock(config):
        return upgrade(config.metadata_path)


def _prepare(key: str, folder: str, lock: str) -> None:
    if os.path.islink(lock):  # the target of a link is never made, read or written
        raise ConfigError(f"{lock!r} is a symbolic link: it must be a file; remove the link.")
    try:
        os.makedirs(folder, exist_ok=True)
        os.close(open_lock_file(lock))
    except OSError as error:
        raise ConfigError(
            f"`{key}` is {folder!r}: it must be a folder that can be written to ({error.strerror}); give another one."
        ) from error


def _work_dir_lock(config: PipelineConfig) -> str:
    return os.path.join(config.work_dir, ".lock")


def _metadata_lock(config: PipelineConfig) -> str:
    return f"{config.metadata_path}.{config.name}.lock"


@contextlib.contextmanager
def run_lock(config: PipelineConfig) -> Iterator[None]:
    """Lock the work_dir and the pipeline's name in the metadata; the system releases both if the process dies.

    A second run in the work_dir would write the same checkpoints. A second run with that name in the metadata would
    treat the executions of the first as those of a dead run.

    Raises:
      InUseError: another run uses one of them.
      ConfigError: one of them cannot be written to.
      StorageError: the server of the metadata does not answer, or refuses the user.
    """
    prepare(config)
    with (
        _locked(_work_dir_lock(config), f"`work_dir` is {config.work_dir!r}", "give another folder"),
        _name_locked(config),
    ):
        yield


def _name_locked(config: PipelineConfig) -> contextlib.AbstractContextManager[None]:
    given, remedy = f"`name` is {config.name!r}", "give the pipeline another name"
    if is_server(config.metadata_path):
        return _locked_on_server(config, given, remedy)
    return _locked(_metadata_lock(config), given, remedy)


@contextlib.contextmanager
def _locked_on_server(config: PipelineConfig, given: str, remedy: str) -> Iterator[None]:
    with MetadataServer.of(config.metadata_path).locked(config.name) as locked:
        if not locked:
            raise InUseError(f"{given}: another run uses it in {config.metadata_path!r}; wait for it, or {remedy}.")
        yield


@contextlib.contextmanager
def _locked(path: str, given: str, remedy: str) -> Iterator[None]:
    """Lock a file, and write the id of this process to it, for the error message of another run."""
    with locked_file(path, wait=False) as locked, open(path, "r+", encoding="utf-8") as process:
        if not locked:
            raise InUseError(
                f"{given}: another run uses it, process {process.read().strip() or '?'}; wait for it, or {remedy}."
            )
        process.truncate(0)
        process.write(str(os.getpid()))
        process.flush()
        yield


# Removes the files and reports of old runs of a pipeline; ML Metadata keeps their lineage.

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
