"""Writes and reads the deltas of a version: numbered, sealed folders, each based on what the one before it leads to.

    <version>/                        a published version
    deltas/<version>/<number>/        delta.pb and manifest.json; numbers are 1, 2, 3, ...
    .deltas-<version>-<number>        an empty file: the number of the last delta

A delta is written under a hidden name, synced and renamed while `.versions.lock` is locked, as a version is. It is
published when the empty file is renamed to its number: no reader sees a delta beyond it, and all see if one up to it is
missing. If that file is gone, all deltas that are there count as published.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from components.pusher.publish import aside_path, order_lock
from components.pusher.served import Updates, is_number, number_names, served_versions
from embedding_core.deltas.protocol import DeltaError
from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.storage import (
    SealedFolder,
    StrPath,
    hidden_folder,
    names_in,
    put_in_place,
    remove_folder,
    remove_leftovers,
    sync,
    sync_tree,
)

_DELTAS = "deltas"
_END = re.compile(r"\.deltas-(?P<version>[0-9]+)-(?P<number>[0-9]+)")
_CONTENT = "delta.pb"
_SEALED = SealedFolder(
    constants={"format": "delta-1"},
    missing="it is not a delta; push the model again",
    remedy="push the model again, which publishes a whole version",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """One delta of a version.

    Attributes:
      number: its number, from 1.
      base: digest of the state that it changes.
      digest: digest of the state that it leads to.
      checksum: what the graph of the version expects as its checksum.
      content: the delta itself.
      facts: JSON values about the push.
    """

    number: int
    base: str
    digest: str
    checksum: str
    content: bytes = dataclasses.field(repr=False)
    facts: Json = dataclasses.field(default_factory=dict, repr=False)


def folder_of(destination: StrPath, version: int) -> str:
    """Return the folder of a version's deltas."""
    return os.path.join(os.path.abspath(destination), _DELTAS, str(version))


def numbers_of(destination: StrPath, version: int) -> list[int]:
    """List the numbers of a version's deltas that are there, ascending."""
    numbers = sorted({int(name) for name in number_names(folder_of(destination, version))})
    end = recorded_end(os.path.abspath(destination), version)
    return [number for number in numbers if end is None or number <= end]


def read_link(destination: StrPath, version: int, number: int) -> Link:
    """Read and verify one delta.

    Raises:
      CheckpointError: it is missing or damaged.
    """
    folder = os.path.join(folder_of(destination, version), str(number))
    body = _SEALED.verify(folder, _SEALED.digests)
    if (body.get("version"), body.get("number")) != (version, number):
        raise CheckpointError(
            f"{folder!r} is delta {body.get('number')} of version {body.get('version')}: it was moved; push the model "
            "again."
        )
    with open(os.path.join(folder, _CONTENT), "rb") as file:
        content = file.read()
    facts = {key: body[key] for key in ("base", "digest", "checksum", "facts")}
    return Link(number=number, content=content, **facts)


def exported_digest(facts: Json) -> str:
    """Return the digest of the state that a version was exported with, from its manifest; "" if it takes no deltas."""
    return str(facts.get("deltas", {}).get("digest", ""))


def read_chain(destination: StrPath, version: int, first: str) -> list[Link]:
    """Read and verify the deltas of a version.

    Args:
      destination: folder of the versions.
      version: number of the version.
      first: digest of the state that the version was exported with.

    Raises:
      CheckpointError: one is missing or damaged, or is not based on the one before it.
    """
    chain: list[Link] = []
    numbers = numbers_of(destination, version)
    for number in range(1, UPDATES.last(destination, version) + 1):
        if number not in numbers:
            raise CheckpointError(
                f"delta {number} of version {version} is missing in {folder_of(destination, version)!r}, which has "
                f"{numbers}: push the model again, which publishes a whole version."
            )
        link = read_link(destination, version, number)
        if link.base != (chain[-1].digest if chain else first):
            raise CheckpointError(
                f"delta {number} of version {version} in {folder_of(destination, version)!r} is not based on what is "
                "before it: push the model again, which publishes a whole version."
            )
        chain.append(link)
    return chain


def version_with_deltas(folder: StrPath) -> tuple[str, int] | None:
    """Return the folder of the versions and the number of the version in a folder; None if it has no deltas."""
    destination, name = os.path.split(os.path.abspath(folder))
    return (destination, int(name)) if is_number(name) and UPDATES.last(destination, int(name)) else None


def end_file(root: str, version: int, number: int) -> str:
    """Return the path of the empty file that says that `number` is the last delta of a version.

    It is beside the versions, so that it stays if deltas are removed.
    """
    return os.path.join(root, f".deltas-{version}-{number}")


def recorded_end(root: str, version: int) -> int | None:
    """Return the number of a version's last delta; None if there are no deltas, or the record is gone."""
    numbers = [int(path.rpartition("-")[2]) for other, path in _ends(root) if other == version]
    return max(numbers, default=None)


def _ends(root: str) -> list[tuple[int, str]]:
    """Return the versions for which a last delta is recorded, and the paths of the records."""
    found = [match for match in map(_END.fullmatch, names_in(root)) if match]
    return [(int(match["version"]), os.path.join(root, match[0])) for match in found]


def publish_delta(destination: StrPath, version: int, chain: Sequence[Link], link: Link) -> str:
    """Write a delta behind those of a version; it appears whole or not at all.

    Args:
      destination: folder of the versions.
      version: number of the version, which must be the newest.
      chain: the deltas that are there already.
      link: the new one.

    Returns:
      Its folder.

    Raises:
      DeltaError: another push published a version or a delta meanwhile.
      CheckpointError: the delta cannot be written; what was there is unchanged.
    """
    root = os.path.abspath(destination)
    folder = folder_of(root, version)
    try:
        os.makedirs(folder, exist_ok=True)
        for parent in (root, os.path.dirname(folder)):
            sync(parent)
        with order_lock(root):
            remove_leftovers(folder)
            _require_newest(root, version, chain, link)
            if recorded_end(root, version) is None:
                _write_end(root, version, len(chain))
            remove_folder(os.path.join(folder, str(link.number)))  # of a push that died before it published its delta
            with hidden_folder(os.path.join(folder, "delta")) as hidden:
                _write(hidden, version, link)
                sync_tree(hidden)
                put_in_place(hidden, os.path.join(folder, str(link.number)))
            put_in_place(end_file(root, version, len(chain)), end_file(root, version, link.number))
    except OSError as error:
        raise CheckpointError(
            f"a delta could not be written below {folder!r} ({error}): what is there is unchanged; make room, and push "
            "again."
        ) from error
    return os.path.join(folder, str(link.number))


def _write_end(root: str, version: int, number: int) -> None:
    """Record the number of the last delta of a version that has no such record."""
    with open(end_file(root, version, number), "wb"):
        pass
    sync(root)


def _write(folder: str, version: int, link: Link) -> None:
    """Write the content of a delta and its manifest into an empty folder."""
    with open(os.path.join(folder, _CONTENT), "wb") as file:
        file.write(link.content)
    facts = {key: getattr(link, key) for key in ("number", "base", "digest", "checksum", "facts")}
    _SEALED.write(folder, {"version": version, **facts})


def _require_newest(root: str, version: int, chain: Sequence[Link], link: Link) -> None:
    newest, numbers = max(served_versions(root), default=None), numbers_of(root, version)
    there = [link.number for link in chain]
    if (
        newest != version
        or numbers != there
        or UPDATES.last(root, version) != len(there)
        or link.number != len(there) + 1
    ):
        raise DeltaError(
            f"another push came first: version {newest} is the newest, and version {version} has the deltas {numbers}."
        )


class DeltaUpdates(Updates):
    """The deltas of versions, as updates."""

    properties = ("pushed_delta", "state_digest")

    def last(self, destination: StrPath, version: int) -> int:
        """Return the number of the last delta that was published of a version, which may be missing; 0 if none was."""
        end = recorded_end(os.path.abspath(destination), version)
        return max(numbers_of(destination, version), default=0) if end is None else end

    def last_facts(self, destination: str, version: int) -> Json | None:
        """Read the facts about the push of a version's last delta."""
        last = self.last(destination, version)
        return read_link(destination, version, last).facts if last else None

    def pushed(self, facts: Mapping[str, Any]) -> int:
        """Return the number of the delta that a PushedModel with these properties is of."""
        return int(facts.get("pushed_delta") or 0)

    def read(self, folder: StrPath, facts: Json) -> list[Link]:
        """Read and verify the deltas of the version in a folder."""
        version = version_with_deltas(folder)
        return [] if version is None else read_chain(*version, exported_digest(facts))

    def description(self, folder: StrPath, facts: Json) -> str:
        """Return the number of the deltas, their size, and what they lead to."""
        chain = self.read(folder, facts)
        size = sum(len(link.content) for link in chain)
        return f"{len(chain)} deltas, {size:,} bytes, as published; they lead to {chain[-1].digest}" if chain else ""

    def write(self, destination: StrPath, version: int, updates: Sequence[Link]) -> None:
        """Write all deltas of a version that has not been published yet."""
        if not updates:
            return
        folder = folder_of(destination, version)
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        sync(os.path.abspath(destination))
        with hidden_folder(folder) as hidden:
            for link in updates:
                os.mkdir(os.path.join(hidden, str(link.number)))
                _write(os.path.join(hidden, str(link.number)), version, link)
            sync_tree(hidden)
            put_in_place(hidden, folder)
        _write_end(os.path.abspath(destination), version, len(updates))

    def move(self, root: str, version: str, hidden: str) -> None:
        """Move the deltas of a version and the record of the last one to the folder that is to be removed."""
        deltas = os.path.join(root, _DELTAS, version)
        if os.path.isdir(deltas):
            os.rename(deltas, os.path.join(hidden, f"{_DELTAS}-{version}"))
        for number, path in _ends(root):
            if number == int(version):
                os.rename(path, os.path.join(hidden, os.path.basename(path)))

    def remove_without_version(self, root: str) -> None:
        """Remove the deltas of versions that are not there any more."""
        folder, kept = os.path.join(root, _DELTAS), {*served_versions(root)}
        remove_leftovers(folder)
        for name in number_names(folder):
            if int(name) not in kept and not os.path.exists(aside_path(root, int(name))):
                remove_folder(os.path.join(folder, name))
        for version, path in _ends(root):
            if version not in kept and not os.path.exists(aside_path(root, version)):
                os.unlink(path)


UPDATES = DeltaUpdates()
