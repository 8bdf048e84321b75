"""Defines the error classes. Every message names the given value, the rule and the remedy.

    EmbeddingError
    ├── ConfigError      (ValueError)    a value that the user wrote breaks a rule
    │   └── UnsupportedError  (NotImplementedError, too)  a hyperparameter that the hardware would ignore
    ├── DataError        (ValueError)    the data is not what the configuration says
    ├── VocabularyError  (ValueError)    a vocabulary is damaged, or is not the one that its rows belong to
    ├── CheckpointError  (RuntimeError)  a checkpoint is damaged, incomplete, or belongs to other tables
    │   └── NonfiniteError               rows hold NaN or infinity
    ├── EngineError      (RuntimeError)  an engine was used at the wrong time or place
    ├── TrainingError    (RuntimeError)  training cannot continue
    ├── PreemptionError  (RuntimeError)  training received SIGTERM and saved its state
    ├── ParityError      (RuntimeError)  the exported model computes other results than training
    └── StorageError     (OSError)       a disk is full or fails, or the metadata on it is damaged

Each also derives from the class that TensorFlow raises in the same case, so that code
written against ``tf.tpu.experimental.embedding`` catches the same classes here.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping


class EmbeddingError(Exception):
    """Base class of every error that this project raises deliberately."""

    ag_pass_through = True  # AutoGraph would otherwise replace the class of errors raised inside a tf.function


class ConfigError(EmbeddingError, ValueError):
    """A value that the user wrote breaks a rule."""


class UnsupportedError(ConfigError, NotImplementedError):
    """What trains the tables would ignore a setting."""


class DataError(EmbeddingError, ValueError):
    """The data is not what the configuration says it is."""


class VocabularyError(EmbeddingError, ValueError):
    """A vocabulary is damaged, or is not the one that the rows belong to."""


class CheckpointError(EmbeddingError, RuntimeError):
    """A checkpoint is damaged, incomplete, or belongs to other tables."""


class NonfiniteError(CheckpointError):
    """Rows hold NaN or infinity.

    Attributes:
      rows: number of such rows, by table.
    """

    def __init__(self, message: str, rows: Mapping[str, int]) -> None:
        super().__init__(message)
        self.rows = dict(rows)


class EngineError(EmbeddingError, RuntimeError):
    """An embedding engine was used at the wrong time or in the wrong place."""


class TrainingError(EmbeddingError, RuntimeError):
    """Training cannot continue: the loss or rows of a table are NaN or infinite."""


class PreemptionError(EmbeddingError, RuntimeError):
    """Training received SIGTERM and saved its state; if the same run is started again, it resumes from there."""


class ParityError(EmbeddingError, RuntimeError):
    """The exported model computes other results than training did."""


class StorageError(EmbeddingError, OSError):
    """A disk is full or fails, or the metadata on it is damaged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem that a check reports without raising an error.

    Attributes:
      kind: name of the check.
      what: the given value, table or operation.
      rule: requirement, or behaviour of TensorFlow.
      remedy: advice on what to change.
    """

    kind: str
    what: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.rule}; {self.remedy}."


_LONG_ENOUGH = 3  # a shorter text is contained in many names by chance


def nearest(name: object, known: Iterable[object]) -> str:
    """Return the remedy for an unknown name as text: the nearest known name, or else the first ten known names."""
    names = [str(item) for item in known]
    folded = {item.casefold(): item for item in names}
    given = str(name).casefold()
    within = [item for item in folded if len(given) >= _LONG_ENOUGH and given in item]
    if len(within) == 1:
        return f"did you mean {folded[within[0]]!r}?"
    close = difflib.get_close_matches(given, folded, n=1)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    if not names:
        return "there is none to choose from."
    return f"choose from {', '.join(names[:10])}{', ...' if len(names) > 10 else '.'}"
