"""Decides whether a push can be a delta of the newest version, makes it, and proves it before it is published."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from components.deltas.client import apply_chain
from components.deltas.keys import Deltas
from components.deltas.updates import Link, publish_delta, read_chain
from components.pusher.publish import PushForm
from components.pusher.served import Publication, served_versions, verify_version
from embedding_core.deltas.content import Delta
from embedding_core.deltas.export import DeltaExport
from embedding_core.deltas.graph import checksum
from embedding_core.deltas.protocol import APPLY_DELTA, MODEL_DIGEST, DeltaError
from embedding_core.deltas.served_state import Layout, LoadedVersion, ServedState, read_state
from embedding_core.errors import CheckpointError
from embedding_core.schema import Json

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedDelta:
    """A delta that has not been proven yet.

    Attributes:
      version: number of its version.
      content_digest: digest of the files of this version.
      chain: the deltas before it.
      link: the delta.
    """

    version: int
    content_digest: str
    chain: tuple[Link, ...]
    link: Link


def plan_delta(destination: str, exported: str, settings: Deltas) -> PlannedDelta:
    """Make the delta from the served model to the new export.

    Args:
      destination: folder of the versions.
      exported: folder of the new model, exported as a whole.
      settings: rules for pushing a whole version instead.

    Raises:
      DeltaError: a whole version must be pushed; the message says why.
    """
    newest = max(served_versions(destination), default=None)
    if newest is None:
        raise DeltaError("there is no version to base a delta on.")
    version = os.path.join(destination, str(newest))
    try:
        manifest = verify_version(version)
        served = read_state(version)
        chain = read_chain(destination, newest, served.layout.digest)
    except CheckpointError as error:
        raise DeltaError(str(error)) from error
    if len(chain) >= settings.full_every:
        raise DeltaError(
            f"version {newest} has {len(chain)} deltas, and `push.deltas.full_every` is {settings.full_every}."
        )
    for link in chain:
        served = Delta.from_bytes(link.content, served).applied(served)
    new = read_state(exported)
    link = _link(len(chain) + 1, served, new, settings.max_share)
    return PlannedDelta(version=newest, content_digest=manifest["digest"], chain=tuple(chain), link=link)


def _link(number: int, served: ServedState, new: ServedState, max_share: float) -> Link:
    delta = Delta.between(served, new)
    _require_small(delta.changed_bytes, new.size, max_share)  # before it is serialized, which may not be possible
    content, base, digest = delta.to_bytes(served.layout), served.digest(), new.layout.digest
    _require_small(len(content), new.size, max_share)
    facts = {"bytes": len(content), "changed_bytes": delta.changed_bytes, "changes": delta.counts()}
    key = served.layout.checksum_key
    return Link(
        number=number,
        base=base,
        digest=digest,
        checksum=checksum(key, number, base, digest, content),
        content=content,
        facts=facts,
    )


def _require_small(size: int, whole: int, max_share: float) -> None:
    if size > max_share * whole:
        raise DeltaError(
            f"the delta has {size} bytes, {size / whole:.3g} of the model's {whole}; "
            f"`push.deltas.max_share` is {max_share:g}; raise it if servers are to take such a delta."
        )


def prove_delta(
    destination: str, planned: PlannedDelta, exported: str, requests: Mapping[str, Any], secret: bytes
) -> Json:
    """Apply the chain and the delta to the version, and compare with the new export, bit by bit.

    Args:
      destination: folder of the versions.
      planned: the delta.
      exported: folder of the new model, exported as a whole.
      requests: inputs by signature: serialized tf.Examples, or tensors by name.
      secret: the secret of the deltas.

    Returns:
      How much was compared.

    Raises:
      DeltaError: the version refuses a delta, or the results differ: a whole version must be pushed.
    """
    with LoadedVersion(os.path.join(destination, str(planned.version))) as served, LoadedVersion(exported) as whole:
        first = planned.chain[0].base if planned.chain else planned.link.base

        def call(**inputs: Any) -> Json:
            return served.call(APPLY_DELTA, **inputs)

        apply_chain(call, first, (*planned.chain, planned.link), secret)
        if served.state().digest() != planned.link.digest:
            raise DeltaError("the served tables, tokens or weights would not be those of the new model.")
        compared = {name: _require_same(name, served, whole, rows) for name, rows in requests.items()}
    return {"compared": compared, "deltas": len(planned.chain) + 1}


def _require_same(signature: str, served: LoadedVersion, whole: LoadedVersion, rows: Any) -> int:
    """Compare the answers of a signature; return the number of rows."""
    got, wanted = served.answer(signature, rows), whole.answer(signature, rows)
    for name in sorted(got.keys() | wanted.keys()):
        if name not in got or name not in wanted or not same_bits(got[name], wanted[name]):
            raise DeltaError(f"output {name!r} of signature {signature!r} would not be that of the new model.")
    return len(wanted[MODEL_DIGEST])


def same_bits(first: Any, other: Any) -> bool:
    """Return whether two arrays hold the same bits, or the same texts."""
    if first.shape != other.shape or first.dtype != other.dtype:
        return False
    return bool(first.tolist() == other.tolist() if first.dtype == object else first.tobytes() == other.tobytes())


def push_delta(
    destination: str,
    exported: str,
    *,
    settings: Deltas,
    secret: bytes,
    check: Callable[[str], Json],
    requests: Mapping[str, Any],
) -> tuple[Publication, Json]:
    """Publish a new model as a delta of the newest version.

    Args:
      destination: folder of the versions.
      exported: folder of the new model, exported as a whole.
      settings: rules for pushing a whole version instead.
      secret: the secret of the deltas.
      check: function that compares the export with training, and returns facts for the manifest.
      requests: inputs by signature of the comparison with the export.

    Returns:
      The publication and the facts of its manifest.

    Raises:
      DeltaError: a whole version must be pushed; the message says why.
      CheckpointError: the delta cannot be written.
    """
    planned = plan_delta(destination, exported, settings)
    facts = check(exported)
    proof = prove_delta(destination, planned, exported, requests, secret)
    link = planned.link
    facts = {**link.facts, **facts, "deltas": {"digest": link.digest, "full_push": "", "proof": proof}}
    publish_delta(destination, planned.version, planned.chain, dataclasses.replace(link, facts=facts))
    path = os.path.join(os.path.abspath(destination), str(planned.version))
    return Publication(planned.version, path, planned.content_digest, link.number), facts


def push_form(settings: Mapping[str, Any]) -> PushForm | None:
    """Return the form that the settings of the component name; None if they do not name this one."""
    return DeltaPush(Deltas.from_mapping(settings["deltas"])) if settings["deltas"] is not None else None


class DeltaPush(PushForm):
    """Pushes a delta of the newest version; if a delta is not possible, a whole version that takes deltas."""

    def __init__(self, settings: Deltas) -> None:
        """Read the secret.

        Raises:
          ConfigError: it is missing or too short.
        """
        self._settings, self._secret = settings, settings.secret()
        self.export = DeltaExport(secret=self._secret, spare_rows=settings.spare_rows)

    def push(
        self,
        exported: str,
        destination: str,
        *,
        check: Callable[[str], Json],
        keep_last: int | None,
        requests: Callable[[], Mapping[str, Any]],
    ) -> tuple[Publication, Json]:
        """Publish a delta; if a delta is not possible, a whole version."""
        settings, secret, inputs = self._settings, self._secret, requests()
        try:
            return push_delta(destination, exported, settings=settings, secret=secret, check=check, requests=inputs)
        except DeltaError as error:
            reason = str(error)
        # Outside of the handler: an error from here on must not have the DeltaError, which is harmless, as its context.
        _log.info("a whole version is pushed, and no delta: %s", reason)
        deltas = {"digest": Layout.load(exported).digest, "full_push": reason}

        def checked(copy: str) -> Json:
            return {**check(copy), "deltas": deltas}

        return super().push(exported, destination, check=checked, keep_last=keep_last, requests=requests)

    def properties(self, published: Publication, facts: Json) -> dict[str, str]:
        """Return the number of the delta ("0" for a whole version), what is served, and why no delta was pushed."""
        deltas = facts["deltas"]
        return {
            "pushed_delta": str(published.update),
            "state_digest": deltas["digest"],
            "full_push": deltas["full_push"],
        }
