"""Damages each file of a pushed version: the verifier detects it, or the files are still what was pushed."""

import json
import random
import sys
from pathlib import Path

import pytest

from components.pusher.publish import publish
from components.pusher.served import MANIFEST, verify_version, version_digests
from embedding_core.errors import CheckpointError
from tests.faults.damaging import KINDS, damage
from tests.faults.pushing import SIZES, make_model


def outcome(folder, before):
    """Classify a fault: "detected" by the verifier, else "harmless" if the files are as before, or "silent"."""
    try:
        verify_version(folder)
    except CheckpointError:
        return "detected"
    return "harmless" if version_digests(folder) == before else "silent"


@pytest.mark.parametrize("faults", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_push_damaged_is_never_silent(tmp_path, faults):
    """If the verifier passes, every byte that a server reads is as pushed, and so is every prediction."""
    make_model(tmp_path / "model", 1)
    facts = {"parity": {"max_abs": 0.0}, "vocabularies": {"words": "x" * 64}}
    pushed = publish(tmp_path / "model", tmp_path / "base", check=lambda path: facts).path
    before, random_ = version_digests(pushed), random.Random(1)
    for name in [*SIZES, MANIFEST]:
        counts = dict.fromkeys(("detected", "harmless", "silent"), 0)
        other = f"{pushed}/{'saved_model.pb' if name != 'saved_model.pb' else 'fingerprint.pb'}"
        good = {path: Path(path).read_bytes() for path in (f"{pushed}/{name}", other)}
        for fault in range(faults):
            damage(f"{pushed}/{name}", KINDS[fault % len(KINDS)], random_, other)
            counts[outcome(pushed, before)] += 1
            for path, content in good.items():
                Path(path).write_bytes(content)
        sys.stdout.write(json.dumps({"file": name, "faults": faults, **counts}) + "\n")
        assert counts["silent"] == 0, (name, counts)
        assert counts["detected"] > 0.9 * faults, (name, counts)
    verify_version(pushed)
