"""Reads and checks the settings that refer to a previous run, before anything heavy is loaded."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from typing import TypeAlias

from components.pusher.version_manifest import MODEL
from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote
from pipelines.config import PipelineConfig
from pipelines.config.bases import LATEST, PUSHED, TRAINED, WORDS
from pipelines.previous.finished_trainings import finished_trainings

START, BASE, BASELINE = "warm_start.checkpoint", "vocabulary_evolution.base", "evaluation.baseline"
AGAINST = "shadow.against"
"""The keys that refer to a previous run."""

_FILES = {
    START: ("manifest.json", "an EmbeddingCheckpoint"),
    BASE: ("*.counts.npy", "Vocabularies"),
    AGAINST: (MODEL, "a version"),
}

References: TypeAlias = Mapping[str, str | None]
"""By `START`, `BASE`, `BASELINE` and `AGAINST` a word such as "pushed", an address, or None."""


def check_references(config: PipelineConfig) -> None:
    """Check the addresses, and that the metadata knows the versions that words may refer to.

    Raises:
      ConfigError: a local address has no such artifact; or see `FinishedTrainings.candidates`.
    """
    given = references(config)
    check_addresses(given)
    words = {meaning(key, value) for key, value in given.items() if value in WORDS}
    if words:
        trainings = finished_trainings(config)
        for word in sorted(words):
            next(trainings.candidates(word), None)


def references(config: PipelineConfig) -> References:
    """Return what the configuration gives for `START`, `BASE`, `BASELINE` and `AGAINST`."""
    return {
        START: None if config.warm_start is None else config.warm_start.checkpoint,
        BASE: None if config.vocabulary_evolution is None else config.vocabulary_evolution.base,
        BASELINE: config.evaluation.baseline,
        AGAINST: None if config.shadow is None else config.shadow.against,
    }


def meaning(key: str, value: str | None) -> str:
    """Return the word that a key's value means: "latest" is the former name of "pushed" or "trained"."""
    if value != LATEST:
        return str(value)
    return PUSHED if key in (BASELINE, AGAINST) else TRAINED


def check_addresses(given: References) -> None:
    """Check that local addresses hold an artifact of their kind; the component checks what is in a bucket.

    Raises:
      ConfigError: a local address does not hold such an artifact.
    """
    for key, (file, kind) in _FILES.items():
        uri = given[key]
        if uri is None or uri in WORDS or is_remote(uri) or glob.glob(os.path.join(glob.escape(uri), file)):
            continue
        raise ConfigError(
            f'`{key}` is {uri!r}: it has no {file}; give "pushed", or the folder of {kind}, such as '
            "artifacts/<component>/<output>/<number> of the work_dir of another pipeline."
        )
