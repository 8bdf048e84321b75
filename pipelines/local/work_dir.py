"""Prepares the work_dir, and locks it and the pipeline's name in the metadata: one run at a time uses them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from embedding_core.errors import ConfigError
from embedding_core.storage import locked_file, open_lock_file, umask_of
from pipelines.config import PipelineConfig
from pipelines.config.metadata_server import MetadataServer, is_server
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
