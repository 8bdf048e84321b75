"""Publishes to an object store, which cannot rename: the file that makes a version loadable is uploaded last.

    <version>/assets.extra/manifest.json     first: from here on the folder is known as a version
    <version>/variables/..., assets/...      uploaded and read back
    <version>/saved_model.pb                 the last one

TensorFlow's loader and TensorFlow Serving need `saved_model.pb`; Serving retries a version that it cannot load yet.
So a version is loaded whole or not at all, even if the pusher dies midway. The next push removes incomplete
versions of pushes that were killed. Run one pusher at a time: an object store does not have locks either.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterator

import tensorflow as tf

from components.pusher.served import (
    MANIFEST,
    MODEL,
    Publication,
    copy_model,
    is_version,
    served_versions,
    write_manifest,
)
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.schema import Json
from embedding_core.storage import exists, file_digest, file_names_below, remove_tree, scratch_folder
from embedding_core.storage.file_access import tensorflow_errors_as_os_errors


def publish_remotely(
    source: str,
    base: str,
    *,
    check: Callable[[str], Json],
    keep_last: int | None,
    clock: Callable[[], float],
) -> Publication:
    """Publish the SavedModel in `source` as the next version below the address.

    Args:
      source: local folder of a SavedModel.
      base: address of the versions.
      check: as in `components.pusher.publish.publish`; it is given a local copy of what is uploaded.
      keep_last: how many of the newest versions to keep, or None for all.
      clock: seconds since 1970.

    Raises:
      CheckpointError: an uploaded file, when read back, differs from the local one; or the store refuses a request.
      ConfigError: `keep_last` is given, and a numbered folder below the address is not a version.
    """
    if keep_last is not None:
        with _requests(base, "a version could not be published"):
            _require_versions(base)
    with scratch_folder("push") as copy:
        files = copy_model(source, copy)
        digest = write_manifest(copy, files, check(copy))
        with _requests(base, "a version could not be published"):
            version = max(int(clock()), *(number + 1 for number in served_versions(base)), 1)
            target = posixpath.join(base, str(version))
            try:
                for name in sorted([MANIFEST, *files], key=lambda name: (name == MODEL, name != MANIFEST, name)):
                    _upload(posixpath.join(copy, name), posixpath.join(target, name))
            except BaseException:
                with contextlib.suppress(tf.errors.OpError, OSError):  # the next push removes what is left
                    _remove(target)
                raise
    with _requests(base, f"version {version} is published, but older ones could not be removed"):
        _remove_old(base, keep_last)
    return Publication(version, target, digest)


@contextlib.contextmanager
def _requests(base: str, what: str) -> Iterator[None]:
    """Convert the errors of requests to the store to an error that says what did not happen."""
    try:
        with tensorflow_errors_as_os_errors():
            yield
    except OSError as error:
        raise CheckpointError(
            f"{what} below {base!r} ({error}): check the address and the rights of this process, and push again."
        ) from error


def _upload(path: str, target: str) -> None:
    """Upload one file, and read it back."""
    tf.io.gfile.makedirs(posixpath.dirname(target))
    tf.io.gfile.copy(path, target, overwrite=True)
    if file_digest(target) != file_digest(path):
        raise CheckpointError(f"{target!r} is not what was uploaded: check the store, and push again.")


def _remove_old(base: str, keep_last: int | None) -> None:
    """Remove incomplete versions older than the newest, and all but the `keep_last` newest complete ones."""
    versions = [posixpath.join(base, str(number)) for number in served_versions(base)]
    versions = [path for path in versions if is_version(path) or _is_empty(path)]
    complete = [path for path in versions if exists(posixpath.join(path, MODEL))]
    kept = complete if keep_last is None else complete[-keep_last:]
    for path in versions[:-1]:
        if path not in kept:
            _remove(path)


def _require_versions(base: str) -> None:
    """Refuse to remove old versions if a numbered folder is not a version."""
    for number in served_versions(base):
        path = posixpath.join(base, str(number))
        if not is_version(path) and not _is_empty(path):
            raise ConfigError(
                f"{path!r} holds no {MODEL!r}, so it is not a version, and is not to be removed: name an address that "
                "holds versions alone, or move this one away."
            )


def _is_empty(path: str) -> bool:
    """Return whether a folder holds no file: its pusher died before the manifest was there."""
    return tf.io.gfile.isdir(path) and not file_names_below(path)


def _remove(target: str) -> None:
    """Remove a version: first the file without which it cannot be loaded, last the one by which it is known.

    If the pusher dies in between, the next one takes the folder for a version, and removes the rest.
    """
    for name in sorted(file_names_below(target), key=lambda name: (name == MANIFEST, name != MODEL)):
        with contextlib.suppress(tf.errors.NotFoundError):  # as `remove_tree` does
            tf.io.gfile.remove(posixpath.join(target, name))
    remove_tree(target)
