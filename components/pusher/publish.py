"""Publishing a version folder that is never seen half: hidden copy, manifest, check, one rename.

TF Serving takes any folder with a numeric name for a version, complete or not, so the number is
given last::

    .push-<id>.lock   held (flock) as long as the pusher lives; who can take it may sweep
    .push-<id>/       the copy: files, read back; the caller's check loads this very copy; manifest, fsync
    <version>/        the same folder after one rename, under the folder's lock
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from components.artifact_files import RECORD_SUFFIX
from components.pusher.manifest import MODEL, copy_files, is_version, write_manifest
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.storage import sync, sync_tree

__all__ = [
    "Publication",
    "keep_newest",
    "publish",
    "require_local",
    "require_versions",
    "set_version_aside",
    "sweep",
    "versions",
]

_PREFIX = ".push-"
_ORDER_LOCK = ".versions.lock"
_SET_ASIDE = ".damaged-"
_LARGEST_VERSION = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Publication:
    """What was published: its version, where it lies, and the digest of its content."""

    version: int
    path: str
    digest: str


def versions(base: str | os.PathLike[str]) -> list[int]:
    """The numbers that stand in the folder, whatever they are: files and incomplete folders count too."""
    return sorted({int(name) for name in _numbers(base)})


def _numbers(base: str | os.PathLike[str]) -> list[str]:
    return [name for name in os.listdir(base) if name.isascii() and name.isdigit()]


def publish(
    source: str | os.PathLike[str],
    base: str | os.PathLike[str],
    *,
    check: Callable[[str], Mapping[str, Any]],
    keep_last: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Publication:
    """Publish the SavedModel in `source` as the next version below `base`.

    Versions strictly increase: unix seconds, or one more than the largest number there, whichever is
    larger. Where anything fails, earlier versions stay as they were and nothing is left behind.

    Args:
      source: folder of a SavedModel.
      base: folder that holds the versions, made where absent; or an address of an object store, where other rules hold
        (`components.pusher.remote`).
      check: called with the path of the hidden copy before it gets its number: returns JSON values for the
        manifest, or raises to stop the push.
      keep_last: how many of the newest versions to keep, or None for all.
      clock: seconds since 1970.

    Raises:
      ConfigError: `keep_last` is below 1; it is given, and a number below `base` is not a version; or nothing can be
        written to `base`.
      CheckpointError: the source is no SavedModel, the copy is not what was read, or the disk is full.
    """
    _require_some(keep_last)
    if not Path(source, MODEL).is_file():
        raise CheckpointError(f"{os.fspath(source)!r} holds no {MODEL!r}: it is no SavedModel; name one.")
    if "://" in os.fspath(base):
        return _publish_remotely(os.fspath(source), os.fspath(base), check=check, keep_last=keep_last, clock=clock)
    root = Path(base).absolute()
    _make_ready(root)
    if keep_last is not None and _numbers(root):
        require_versions(root)  # before anything is published: what is not a version would be removed
    with _hidden_folder(root) as copy:
        with _writing(root):
            files = copy_files(Path(source), copy)
        facts = check(str(copy))
        with _writing(root):
            digest = write_manifest(copy, files, facts)
            sync_tree(copy)
            version = _give_number(copy, root, clock)
    if keep_last is not None:
        keep_newest(root, keep_last)
    return Publication(version, str(root / str(version)), digest)


def _make_ready(root: Path) -> None:
    """Make the folder of versions, and remove what dead pushers left there."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError("it is not writable")
        sweep(root)
    except OSError as error:
        raise ConfigError(
            f"{str(root)!r} cannot hold versions ({error}): name a folder that this process may write to."
        ) from error


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"a version could not be written below {str(root)!r} ({error}): earlier ones are as they were; make room, "
            "and push again."
        ) from error


def _publish_remotely(source: str, base: str, **given: Any) -> Publication:
    from components.pusher.remote import publish_remotely  # it loads TensorFlow

    return Publication(*publish_remotely(source, base, **given))


def _require_some(keep_last: int | None) -> None:
    if keep_last is not None and keep_last < 1:
        raise ConfigError(f"`keep_last` is {keep_last!r}: it must be None for all, or at least 1.")


def require_local(base: str | os.PathLike[str]) -> None:
    """Refuse addresses of object stores.

    Raises:
      ConfigError: it is one.
    """
    if "://" in os.fspath(base):
        raise ConfigError(
            f"{os.fspath(base)!r} is an address of an object store: name a local or mounted folder of versions."
        )


def require_versions(base: str | os.PathLike[str]) -> None:
    """Refuse a folder in which a number is something other than a published version: nobody may remove it.

    Raises:
      ConfigError: it is not a local folder, has no number in it, or one that is not a version.
    """
    require_local(base)
    root = Path(base).absolute()
    if not root.is_dir():
        raise ConfigError(f"{str(root)!r} is not a folder: name the one that holds the versions.")
    numbers = _numbers(root)
    if not numbers:
        raise ConfigError(f"{str(root)!r} holds no version: name the folder that holds them, such as runs/x/serving.")
    for name in sorted(numbers):
        _require_version(root / name)


def _require_version(path: Path) -> None:
    if path.with_name(f"{path.name}{RECORD_SUFFIX}").exists():
        raise ConfigError(
            f"{str(path)!r} is an artifact of a pipeline, not a served version: name the folder that the pipeline "
            "pushes to, such as runs/x/serving."
        )
    if not is_version(lambda name: (path / name).is_file()) and not _holds_no_file(path):
        raise ConfigError(
            f"{str(path)!r} holds no {MODEL!r}, so it is not a version, and is not to be removed: name a folder that "
            "holds versions alone, or move this one away."
        )


def _holds_no_file(path: Path) -> bool:
    """Whether nothing is lost with it, as with a version whose files were deleted."""
    return path.is_dir() and not any(names for _, _, names in os.walk(path))


def sweep(base: str | os.PathLike[str]) -> int:
    """Remove what dead pushers left below the folder; those that live hold their lock. Returns how many."""
    root, swept = Path(base), 0
    for name in {name.removesuffix(".lock") for name in os.listdir(root) if name.startswith(_PREFIX)}:
        with _locked(root / f"{name}.lock", wait=False) as is_dead:
            if is_dead:
                _discard(root, name)
                swept += 1
    return swept


def _discard(root: Path, name: str) -> None:
    """Remove a hidden folder, then its lock: in that order a folder never stands without one."""
    shutil.rmtree(root / name, ignore_errors=True)
    (root / f"{name}.lock").unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock on a file; yields whether it was had. The kernel lets go of it when the process dies."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        # Another process may have swept the file away between our opening and our locking it.
        yield _is_still(path, handle)
    finally:
        os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(handle).st_ino
    return False


@contextlib.contextmanager
def _hidden_folder(root: Path) -> Iterator[Path]:
    """A new hidden folder that nobody sweeps while this process lives; gone afterwards unless renamed."""
    while True:
        name = f"{_PREFIX}{uuid.uuid4().hex}"
        with _locked(root / f"{name}.lock", wait=True) as held:
            if not held:
                continue
            try:
                (root / name).mkdir()
                yield root / name
            finally:
                _discard(root, name)
            return


def _give_number(copy: Path, root: Path, clock: Callable[[], float]) -> int:
    """Rename the copy to the next version, one pusher at a time."""
    with _locked(root / _ORDER_LOCK, wait=True):
        version = max(int(clock()), *(number + 1 for number in versions(root)), 1)
        if version > _LARGEST_VERSION:
            raise ConfigError(
                f"the largest version below {str(root)!r} is {version - 1}: a version must stay below 2**63; "
                "move that folder away."
            )
        os.rename(copy, root / str(version))
        sync(root)
    return version


def keep_newest(base: str | os.PathLike[str], count: int) -> list[int]:
    """Remove all but the newest `count` versions; returns those removed.

    Each goes out of sight in one rename first, so that no half version is ever seen.

    Raises:
      ConfigError: `count` is below 1, a number below `base` is not a version (then nothing is removed), or nothing can
        be removed there.
    """
    _require_some(count)
    require_versions(base)
    root, removed = Path(base).absolute(), []
    try:
        with _locked(root / _ORDER_LOCK, wait=True), _hidden_folder(root) as grave:
            kept = set(versions(root)[-count:])
            for name in _numbers(root):
                if int(name) not in kept:
                    os.rename(root / name, grave / name)
                    removed.append(int(name))
    except OSError as error:
        raise ConfigError(
            f"versions below {str(root)!r} cannot be removed ({error}): name a folder that this process may write to."
        ) from error
    return sorted(removed)


def set_version_aside(base: str | os.PathLike[str], version: int) -> str | None:
    """Rename a damaged version so that no server takes it; returns its new path, or None if it is not there.

    Do so when another version is there to be served.

    Raises:
      ConfigError: `base` is an address of an object store, or it cannot be renamed.
    """
    require_local(base)
    root = Path(base).absolute()
    place = root / f"{_SET_ASIDE}{version}"
    try:
        with _locked(root / _ORDER_LOCK, wait=True):
            found = [name for name in _numbers(root) if int(name) == version]
            if not found:
                return None
            os.rename(root / found[0], place)
    except OSError as error:
        raise ConfigError(
            f"{str(root / str(version))!r} is damaged and cannot be renamed ({error}): move it away."
        ) from error
    return str(place)
