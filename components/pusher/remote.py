"""Publishing to an object store, which has no rename: the file without which a version cannot be loaded comes last.

    <version>/assets.extra/manifest.json     first: the folder is known for a version from here on
    <version>/variables/..., assets/...      uploaded and read back
    <version>/saved_model.pb                 then this one

TensorFlow Serving, which tries a version again that it cannot load yet, and TensorFlow's loader need `saved_model.pb`;
so a version is loaded whole or not at all, also where the pusher dies on the way. What a dead pusher left is removed by
the next one once a later version is there. One pusher at a time: an object store has no lock either.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from components.pusher.manifest import MANIFEST, MODEL, copy_files, is_version, verified, write_manifest
from embedding_core.checkpoint.sealed import file_digest, folder_digests
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.storage import scratch_folder

__all__ = ["publish_remotely", "remote_versions", "verify_remotely"]


def remote_versions(base: str) -> list[int]:
    """The numbers of the folders that stand below the address, complete or not."""
    if not tf.io.gfile.isdir(base):
        return []
    names = (str(name).rstrip("/") for name in tf.io.gfile.listdir(base))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def verify_remotely(folder: str) -> dict[str, Any]:
    """Check every file of a version at an address, as `components.pusher.manifest.verify_manifest` does here.

    Raises:
      CheckpointError: there is no manifest, it is damaged, or a file is missing, damaged or not in it.
    """
    try:
        with tf.io.gfile.GFile(posixpath.join(folder, MANIFEST), "rb") as file:
            return verified(folder, file.read(), lambda: _listed(folder))
    except tf.errors.OpError as error:
        raise CheckpointError(f"{folder!r} cannot be verified ({error.message}): publish the model again.") from error


def _listed(folder: str) -> dict[str, dict[str, Any]]:
    """The digests of its files as a manifest has them."""
    found = folder_digests(folder).items()
    return {name: {"bytes": one["size"], "sha256": one["sha256"]} for name, one in found if name != MANIFEST}


def publish_remotely(
    source: str,
    base: str,
    *,
    check: Callable[[str], Mapping[str, Any]],
    keep_last: int | None,
    clock: Callable[[], float],
) -> tuple[int, str, str]:
    """Publish the SavedModel in `source` as the next version below the address.

    Args:
      source: local folder of a SavedModel.
      base: address that holds the versions.
      check: as `components.pusher.publish.publish` has it; it is given a local copy of what is uploaded.
      keep_last: how many of the newest versions to keep, or None for all.
      clock: seconds since 1970.

    Returns:
      The version, its address, and the digest of its content.

    Raises:
      CheckpointError: what was uploaded is not what was read.
      ConfigError: `keep_last` is given, and a number below the address is not a version.
    """
    if keep_last is not None:
        _require_versions(base)
    with scratch_folder("push") as place:
        copy = Path(place)
        files = copy_files(Path(source), copy)
        digest = write_manifest(copy, files, check(place))
        version = max(int(clock()), *(number + 1 for number in remote_versions(base)), 1)
        target = posixpath.join(base, str(version))
        try:
            for name in sorted([MANIFEST, *files], key=lambda name: (name == MODEL, name != MANIFEST, name)):
                _upload(copy / name, posixpath.join(target, name))
        except BaseException:
            if tf.io.gfile.exists(target):
                _remove(target)
            raise
    _remove_old(base, keep_last)
    return version, target, digest


def _upload(path: Path, target: str) -> None:
    """Copy one file up, and read it back."""
    tf.io.gfile.makedirs(posixpath.dirname(target))
    tf.io.gfile.copy(str(path), target, overwrite=True)
    if file_digest(target) != file_digest(str(path)):
        raise CheckpointError(f"{target!r} is not what was uploaded: check the store, and push again.")


def _remove_old(base: str, keep_last: int | None) -> None:
    """Remove what dead pushers left below the newest version, and all but the newest complete versions."""
    numbers = [one for one in remote_versions(base) if is_version(functools.partial(_has_file, base, one))]
    complete = [one for one in numbers if _has_file(base, one, MODEL)]
    kept = {*complete} if keep_last is None else {*complete[-keep_last:]}
    for number in numbers[:-1]:
        if number not in kept:
            _remove(posixpath.join(base, str(number)))


def _require_versions(base: str) -> None:
    """Refuse to choose which versions stay as long as a number is something else."""
    for number in remote_versions(base):
        if not is_version(functools.partial(_has_file, base, number)):
            raise ConfigError(
                f"{posixpath.join(base, str(number))!r} holds no {MODEL!r}, so it is not a version, and is not to be "
                "removed: name an address that holds versions alone, or move this one away."
            )


def _has_file(base: str, version: int, name: str) -> bool:
    return bool(tf.io.gfile.exists(posixpath.join(base, str(version), name)))


def _remove(target: str) -> None:
    """Remove a version, first the file without which nobody loads it."""
    last = posixpath.join(target, MODEL)
    if tf.io.gfile.exists(last):
        tf.io.gfile.remove(last)
    tf.io.gfile.rmtree(target)
