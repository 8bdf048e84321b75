"""Runs the gates that users write: classes that judge a trained model, named under `gates` in the configuration."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from embedding_core.errors import ConfigError, EmbeddingError
from embedding_core.evaluation.label_scores import scored_batches
from embedding_core.evaluation.push_rules import Check
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.training_inputs import Inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedModel:
    """What a gate judges: the trained model, the rows of the eval split, and the tables.

    Attributes:
      run: the restored model, with its settings as `run.description`.
      inputs: sources of its inputs, as in training.
      eval_files: TFRecord files of the eval split.
    """

    run: RestoredRun
    inputs: Inputs
    eval_files: Sequence[str]

    @property
    def tables(self) -> Mapping[str, npt.NDArray[np.float32]]:
        """The rows of each table, float32 [rows, dim], by name."""
        return {name: variable.numpy() for name, variable in self.run.engine.embedding_tables.items()}

    def batches(self) -> Iterator[tuple[Any, Mapping[str, npt.NDArray[np.float32]]]]:
        """Yield the eval split in batches: `ids`, `dense`, `label` and `weight`, and the predictions by label's name.

        A label has its values in a column of `label`, float32 [B, labels]; NaN if a row lacks it. Predictions are
        float32 [B, width]: a probability, a number, or the probabilities of the classes.
        """
        yield from scored_batches(self.run, self.inputs, self.eval_files)


def own_checks(gates: Sequence[str], model: JudgedModel) -> list[Check]:
    """Ask each gate, and return the outcomes of its rules; a reason names the gate.

    Args:
      gates: dotted paths of classes with `judge(model: JudgedModel) -> Iterable[Check]`, made without arguments.
      model: what they judge.

    Raises:
      ConfigError: a gate fails, or gives something else than a `Check`. The model is then neither blessed nor refused.
    """
    return [_with_reason(path, check) for path in gates for check in _asked(path, model)]


def _asked(path: str, model: JudgedModel) -> list[Check]:
    module, _, name = path.rpartition(".")
    try:
        checks = list(getattr(importlib.import_module(module), name)().judge(model))
    except EmbeddingError:
        raise
    except Exception as error:
        raise ConfigError(f"gate {path!r} failed with {type(error).__name__}: {error}; correct its code.") from error
    for check in checks:
        if not isinstance(check, Check):
            raise ConfigError(f"gate {path!r} gave {check!r}: it must give `embedding_core.evaluation.Check`.")
    return checks


def _with_reason(path: str, check: Check) -> Check:
    if check.met:
        return check
    reason = check.reason or f"{check.name} is {check.value}: it must be {check.bound}."
    return dataclasses.replace(check, reason=f"{path}: {reason}")
