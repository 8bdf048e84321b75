"""Publishes an earlier version of a model again."""

from __future__ import annotations

import dataclasses
import datetime
import os
from pathlib import Path

from components.pusher.publish import publish, require_local
from components.pusher.served import (
    Publication,
    content_digest,
    served_versions,
    verify_version,
    version_digests,
    version_updates,
)
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.schema import Json
from embedding_core.storage import StrPath, readable_as


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
      ConfigError: the version does not exist, or is the newest.
      CheckpointError: the version or one of its updates is damaged.
    """
    require_local(base)
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
    source = next(path for path in Path(base).iterdir() if path.name.isdigit() and int(path.name) == target)
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
