"""Publishes a new or an earlier version so that no server sees an incomplete one: copy, check, manifest, one rename.

TF Serving takes any folder with a numeric name for a version, complete or not, so the copy gets its number last:

    .version.tmp-<id>/   files are copied and read back; the caller's check loads this copy; then manifest and fsync
    <version>/           the same folder after one rename, made while `.versions.lock` is locked

Updates that a version is published with (a rollback) are put in place before it: a reader of the version sees them all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.artifact_files import RECORD_SUFFIX
from components.pusher.served import (
    MODEL,
    Publication,
    content_digest,
    copy_model,
    is_version,
    number_names,
    served_versions,
    verify_version,
    version_digests,
    version_updates,
    write_manifest,
)
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.schema import Json
from embedding_core.storage import (
    StrPath,
    hidden_folder,
    is_remote,
    locked_file,
    put_in_place,
    readable_as,
    remove_leftovers,
    sync_tree,
)

if TYPE_CHECKING:
    from embedding_core.serving import ExportForm

_HIDDEN = "version"
_ORDER_LOCK = ".versions.lock"
_SET_ASIDE = ".damaged-"
_SERVING = "serving"  # the folder of versions in a work_dir, by default
_LARGEST_VERSION = 2**63 - 1


def publish(
    source: StrPath,
    base: StrPath,
    *,
    check: Callable[[str], Json],
    keep_last: int | None = None,
    clock: Callable[[], float] = time.time,
    before: Callable[[int], None] | None = None,
) -> Publication:
    """Publish the SavedModel in `source` as the next version below `base`.

    Versions strictly increase: Unix seconds, or one more than the largest number there, whichever is larger. If
    anything fails before the rename, existing versions stay as they were and nothing is left behind.

    Args:
      source: folder of a SavedModel.
      base: folder of the versions, created if it is missing; or an address of an object store, for which other rules
        apply (`components.pusher.object_store`).
      check: called with the path of the hidden copy before it gets its number; returns JSON values for the
        manifest, or raises an error to stop the push.
      keep_last: how many of the newest versions to keep, or None for all.
      clock: returns the time in seconds since 1970.
      before: called with the number of the version before the version gets it, while other pushers wait; writes the
        updates that the version is published with. Not for an object store.

    Raises:
      ConfigError: `keep_last` is below 1, or is given although a numbered entry of `base` is not a version; `base` is
        not writable; or no number below 2**63 is left.
      CheckpointError: the source is not a SavedModel, the copy differs from what was read, or the disk is full.
    """
    _require_some(keep_last)
    if not Path(source, MODEL).is_file():
        raise CheckpointError(f"{os.fspath(source)!r} is not a SavedModel: it has no {MODEL!r}; name one that has.")
    if is_remote(base):
        from components.pusher.object_store import publish_remotely  # it loads TensorFlow

        return publish_remotely(os.fspath(source), os.fspath(base), check=check, keep_last=keep_last, clock=clock)
    root = os.path.abspath(base)
    _make_ready(root)
    if keep_last is not None and number_names(root):
        _require_versions(root)  # before anything is published, as `keep_newest` checks it only afterwards
    with hidden_folder(os.path.join(root, _HIDDEN)) as copy:
        with _writing(root):
            files = copy_model(source, copy)
        facts = check(copy)
        with _writing(root):
            digest = write_manifest(copy, files, facts)
            sync_tree(copy)
            version = _give_number(copy, root, clock, before)
    if keep_last is not None:
        keep_newest(root, keep_last)
    return Publication(version, os.path.join(root, str(version)), digest)


def _make_ready(root: str) -> None:
    """Create the folder of versions, and remove what pushers that died left there."""
    try:
        os.makedirs(root, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError("it is not writable")
        remove_leftovers(root)
    except OSError as error:
        raise ConfigError(
            f"{root!r} cannot hold versions ({error}): name a folder that this process may write to."
        ) from error


@contextlib.contextmanager
def _writing(root: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"a version could not be written below {root!r} ({error}): the previous versions are unchanged; make room, "
            "and push again."
        ) from error


def _require_some(keep_last: int | None) -> None:
    if keep_last is not None and keep_last < 1:
        raise ConfigError(f"`keep_last` is {keep_last!r}: it must be None for all, or at least 1.")


def require_local(base: StrPath) -> None:
    """Refuse addresses of object stores.

    Raises:
      ConfigError: `base` is an address of an object store.
    """
    if is_remote(base):
        raise ConfigError(
            f"{os.fspath(base)!r} is an address of an object store: name a local or mounted folder of versions."
        )


def _require_numbers(base: StrPath) -> None:
    """Refuse what is not a local folder with a numbered entry.

    Raises:
      ConfigError: `base` is another folder, a file, or an address.
    """
    require_local(base)
    root = Path(base).absolute()
    if root.is_dir() and number_names(root):
        return
    meant = root / _SERVING
    problem = "has no version" if root.is_dir() else "is not a folder"
    remedy = f"name the folder of the served versions (`push.destination`), such as runs/x/{_SERVING}."
    if meant.is_dir() and number_names(meant):
        remedy = f"did you mean {str(meant)!r}?"
    raise ConfigError(f"{str(root)!r} {problem}: {remedy}")


def _require_versions(base: StrPath) -> None:
    """Refuse a folder with a numbered entry that is not a published version: that entry must not be removed.

    Raises:
      ConfigError: `base` is not a local folder, has no numbered entry, or has one that is not a version.
    """
    _require_numbers(base)
    root = Path(base).absolute()
    for name in sorted(number_names(root)):
        _require_version(root / name)


def _require_version(path: Path) -> None:
    if path.with_name(f"{path.name}{RECORD_SUFFIX}").exists():
        raise ConfigError(
            f"{str(path)!r} is an artifact of a pipeline, not a served version: name the folder that the pipeline "
            "pushes to, such as runs/x/serving."
        )
    if not is_version(path) and not _has_no_file(path):
        raise ConfigError(
            f"{str(path)!r} holds no {MODEL!r}, so it is not a version, and is not to be removed: name a folder that "
            "holds versions alone, or move this one away."
        )


def _has_no_file(path: Path) -> bool:
    """Return whether the path is a folder without any file, such as a version whose files were deleted."""
    return path.is_dir() and not any(names for _, _, names in os.walk(path))


def _give_number(copy: str, root: str, clock: Callable[[], float], before: Callable[[int], None] | None) -> int:
    """Rename the copy to the next version number, under a lock that excludes other pushers."""
    with order_lock(root):
        version = max(int(clock()), *(number + 1 for number in served_versions(root)), 1)
        if version > _LARGEST_VERSION:
            raise ConfigError(
                f"the largest version below {root!r} is {version - 1}: a version must stay below 2**63; move that "
                "folder away."
            )
        version_updates().remove_without_version(root)
        if before is not None:
            before(version)
        put_in_place(copy, os.path.join(root, str(version)))
    return version


def order_lock(root: str) -> contextlib.AbstractContextManager[bool]:
    """Wait until no other process gives numbers to versions or updates, or takes them away."""
    return locked_file(os.path.join(root, _ORDER_LOCK), wait=True)


def keep_newest(base: StrPath, count: int) -> list[int]:
    """Remove all but the newest `count` versions, with their updates; return the numbers removed.

    One rename hides each version before its files are removed, so that no server sees an incomplete version.

    Raises:
      ConfigError: `count` is below 1, a numbered entry of `base` is not a version (then nothing is removed), or
        versions cannot be removed.
    """
    _require_some(count)
    _require_versions(base)
    root, removed = os.path.abspath(base), []
    try:
        with order_lock(root), hidden_folder(os.path.join(root, _HIDDEN)) as hidden:
            kept = set(served_versions(root)[-count:])
            for name in number_names(root):
                if int(name) not in kept:
                    os.rename(os.path.join(root, name), os.path.join(hidden, name))
                    removed.append(int(name))
                    version_updates().move(root, name, hidden)
    except OSError as error:
        raise ConfigError(
            f"versions below {root!r} cannot be removed ({error}): name a folder that this process may write to."
        ) from error
    return sorted(removed)


def set_version_aside(base: StrPath, version: int) -> str | None:
    """Rename a damaged version so that no server loads it; return its new path, or None if it does not exist.

    Call it only if there is another version to serve.

    Raises:
      ConfigError: `base` is an address of an object store, or the version cannot be renamed.
    """
    require_local(base)
    root = os.path.abspath(base)
    aside = aside_path(root, version)
    try:
        with order_lock(root):
            name = _name_of(root, version)
            if name is None:
                return None
            os.rename(os.path.join(root, name), aside)
    except OSError as error:
        raise ConfigError(
            f"{os.path.join(root, str(version))!r} is damaged and cannot be renamed ({error}): move it away."
        ) from error
    return aside


def _name_of(base: StrPath, version: int) -> str | None:
    """Return the name of a version, which may have leading zeros; None if the version does not exist."""
    return next((name for name in number_names(base) if int(name) == version), None)


def aside_path(root: str, version: int) -> str:
    """Return the path that a damaged version is renamed to."""
    return os.path.join(root, f"{_SET_ASIDE}{version}")


class PushForm:
    """The form in which models are pushed: as whole versions. Optional rooms have other forms.

    Attributes:
      export: the form of the exported model; None if the model may be served as it was evaluated.
    """

    export: ExportForm | None = None

    def push(
        self,
        exported: str,
        destination: str,
        *,
        check: Callable[[str], Json],
        keep_last: int | None,
        requests: Callable[[], Mapping[str, Any]],
    ) -> tuple[Publication, Json]:
        """Publish a model.

        Args:
          exported: folder of the model.
          destination: folder of the versions.
          check: called with the folder of what is to be served; returns JSON values for its manifest, or raises an
            error to stop the push.
          keep_last: how many of the newest versions to keep, or None for all.
          requests: makes inputs by signature that answers may be compared for.

        Returns:
          The publication and the facts of its manifest.
        """
        facts: Json = {}

        def checked(copy: str) -> Json:
            facts.update(check(copy))
            return facts

        return publish(exported, destination, check=checked, keep_last=keep_last), facts

    def properties(self, published: Publication, facts: Json) -> Mapping[str, str]:
        """Return what PushedModel says about the form of the push."""
        return {}


def roll_back(base: StrPath, to: int | None = None) -> Publication:
    """Publish an earlier version again, under the next number: servers then load it, and nothing is lost.

    The manifest of the copy has the facts of the earlier version, and the fact `rollback` with three entries: `of` is
    the version that was originally pushed (even if `to` is a copy itself), `from` is the version that was the newest,
    and `made` is the time in UTC. The copy has the permissions of the earlier version. The updates of that version are
    published again with the copy: no reader sees the copy without them.

    Args:
      base: folder of the versions.
      to: the version to go back to; None for the one before the newest.

    Raises:
      ConfigError: `base` is not a folder of versions, or the version does not exist or is the newest.
      CheckpointError: the version or one of its updates is damaged.
    """
    _require_numbers(base)
    there = served_versions(base)
    target = there[-2] if to is None and len(there) > 1 else to
    if target is None:
        raise ConfigError(
            f"{os.fspath(base)!r} has the versions {there}: there must be one before the newest to go back to."
        )
    if target not in there[:-1]:
        raise ConfigError(
            f"cannot go back to version {target} below {os.fspath(base)!r}: it must be one of {there[:-1]}, the "
            "versions before the newest."
        )
    source = Path(base, str(_name_of(base, target)))
    manifest = verify_version(source)
    updates = version_updates().read(source, manifest["facts"])
    facts = {**manifest["facts"], "rollback": _rollback(manifest, target, there[-1])}

    def unchanged(copy: str) -> Json:
        if content_digest(version_digests(copy)) != manifest["digest"]:
            raise CheckpointError(f"version {target} changed while it was copied: run the command again.")
        return facts

    def write(version: int) -> None:
        version_updates().write(base, version, updates)

    with readable_as(source):
        published = publish(source, base, check=unchanged, before=write)
    return dataclasses.replace(published, update=len(updates))


def _rollback(manifest: Json, target: int, newest: int) -> Json:
    of = manifest["facts"].get("rollback", {}).get("of", target)
    made = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"of": of, "from": newest, "made": made}
