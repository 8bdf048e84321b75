"""Damages each file of a pushed version: the verifier detects it, or the model is still the one that was pushed."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components.pusher.publish import publish
from components.pusher.served import MANIFEST, verify_version, version_digests
from embedding_core.errors import CheckpointError
from tests.faults.damaging import KINDS, damage
from tests.faults.pushing import SIZES, make_model

FAULTS = 500
FAULTS_OF_A_SAVED_MODEL = 100
ROOT = Path(__file__).parents[2]


def outcome(folder, before):
    """Classify a fault: "detected" by the verifier, else "harmless" if the files are as before, or "silent"."""
    try:
        verify_version(folder)
    except CheckpointError:
        return "detected"
    return "harmless" if version_digests(folder) == before else "silent"


def test_push_damaged_is_never_silent(tmp_path):
    """If the verifier passes, every byte that a server reads is as pushed, and so is every prediction."""
    make_model(tmp_path / "model", 1)
    facts = {"parity": {"max_abs": 0.0}, "vocabularies": {"words": "x" * 64}}
    pushed = publish(tmp_path / "model", tmp_path / "base", check=lambda path: facts).path
    before, random_ = version_digests(pushed), random.Random(1)
    for name in [*SIZES, MANIFEST]:
        counts = dict.fromkeys(("detected", "harmless", "silent"), 0)
        other = f"{pushed}/{'saved_model.pb' if name != 'saved_model.pb' else 'fingerprint.pb'}"
        good = {path: Path(path).read_bytes() for path in (f"{pushed}/{name}", other)}
        for fault in range(FAULTS):
            damage(f"{pushed}/{name}", KINDS[fault % len(KINDS)], random_, other)
            counts[outcome(pushed, before)] += 1
            for path, content in good.items():
                Path(path).write_bytes(content)
        sys.stdout.write(json.dumps({"file": name, "faults": FAULTS, **counts}) + "\n")
        assert counts["silent"] == 0, (name, counts)
        assert counts["detected"] > 0.9 * FAULTS, (name, counts)
    verify_version(pushed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_saved_model_that_passes_the_verifier_answers_as_pushed(tmp_path):
    """Each damaged copy that passes the verifier is loaded and must give the same answers."""
    from tests.faults.loading import answer

    subprocess.run([sys.executable, "-m", "tests.faults.fuzzing", str(tmp_path), "export"], cwd=ROOT, check=True)
    pushed = publish(tmp_path / "model", tmp_path / "base", check=lambda path: {}).path
    expected, random_ = answer(pushed), random.Random(2)
    names = sorted([*version_digests(pushed), MANIFEST])
    for name in names:
        counts = dict.fromkeys(("detected", "harmless", "silent"), 0)
        for fault in range(FAULTS_OF_A_SAVED_MODEL):
            # A separate folder for each fault: TensorFlow shares vocabularies of the same file name within a process.
            copy = str(tmp_path / f"{fault}-{name.replace('/', '-')}")
            shutil.copytree(pushed, copy)
            other = random_.choice([one for one in names if one != name])
            damage(f"{copy}/{name}", KINDS[fault % len(KINDS)], random_, f"{copy}/{other}")
            try:
                verify_version(copy)
            except CheckpointError:
                counts["detected"] += 1
            else:
                counts["harmless" if answer(copy) == expected else "silent"] += 1
            shutil.rmtree(copy)
        line = {"campaign": "damaged SavedModel", "file": name, "faults": FAULTS_OF_A_SAVED_MODEL, **counts}
        sys.stdout.write(json.dumps(line) + "\n")
        assert counts["silent"] == 0, (name, counts)
        assert counts["detected"] > 0.7 * FAULTS_OF_A_SAVED_MODEL, (name, counts)
