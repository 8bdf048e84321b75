"""Decides which slots a changed optimizer inherits from the previous one."""

from __future__ import annotations

import numpy as np

from embedding_core.checkpoint.bundle import Rows
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import FTRL, Adagrad, AdagradMomentum, Optimizer
from embedding_core.warm_start import ChangedOptimizer


def carried_slots(old: Optimizer | None, new: Optimizer | None, policy: ChangedOptimizer) -> set[str]:
    """Return the slots that the new optimizer inherits from the old one; the others get their initial value.

    An optimizer of the same class keeps all slots. Otherwise "convert" keeps the accumulators if both optimizers are
    Adagrad, FTRL or AdagradMomentum with `beta2` 1, whose accumulators are all sums of squared gradients.
    """
    if type(old) is type(new):
        return {slot.name for slot in new.slots} if new else set()
    both = policy == "convert" and _sums_squares(old) and _sums_squares(new)
    return {"accumulators"} if both else set()


def _sums_squares(optimizer: Optimizer | None) -> bool:
    if isinstance(optimizer, AdagradMomentum):
        return optimizer.beta2 == 1.0
    return isinstance(optimizer, Adagrad | FTRL)


def ftrl_linears(optimizer: FTRL, rows: Rows, accumulators: Rows) -> Rows:
    """Compute the linear terms from which FTRL reproduces rows that another optimizer trained.

    FTRL recomputes a row from its slots at every update, so with linear terms of zero a trained row would be lost at
    its next gradient. The formula is that of `update_rules.ftrl`, solved for the linear term.

    Raises:
      CheckpointError: the optimizer's learning rate is a schedule.
    """
    rate = optimizer.learning_rate
    if callable(rate):
        raise CheckpointError(
            f"`learning_rate` of {optimizer!r} is a schedule: slots of FTRL cannot be made from trained rows then; "
            "give a number, or keep the optimizer."
        )
    power = np.power(accumulators.astype(np.float64), -optimizer.learning_rate_power)
    scale = rate if optimizer.multiply_linear_by_learning_rate else 1.0
    l1, l2 = optimizer.l1_regularization_strength, optimizer.l2_regularization_strength
    denominator = ((power + optimizer.beta) / rate + 2.0 * l2) * scale
    linears: Rows = (-rows * denominator - np.sign(rows) * l1 * scale).astype(np.float32)
    return linears
