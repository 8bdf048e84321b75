"""Chooses which choices are trained, and trains each with every seed, within a number of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from embedding_core.config import EmbeddingConfig
from pipelines.choices.choice import AS_CONFIGURED, Choice, chain, doubled, larger_batch, singles, smallest, thinned
from pipelines.choices.losses import Loss, Losses, loss_of
from pipelines.choices.short_runs import ShortRun, ShortRuns, figures_of

_COMBINATIONS = 3  # choices of several tables that runs are left for
_WINNERS = 1  # choices that runs are left for, for what the plan would recommend
_NOTHING = Loss(0.0, 0.0, "estimated")


@dataclasses.dataclass
class Measured:
    """The finished runs of a plan.

    Attributes:
      figure: name of the figure that compares choices: "AUC" or "loss".
      losses: the losses of choices.
      runs: the runs, in the order in which they were made.
      kept: number of runs whose results a previous command kept.
      seconds: time of all runs, of previous commands too.
    """

    figure: str
    losses: Losses
    runs: Sequence[ShortRun]
    kept: int
    seconds: float


class Measurement:
    """Trains choices in rounds.

    Args:
      short_runs: makes the runs and keeps their results.
      tables: the configured tables.
      seeds: seeds that every choice is trained with.
      most: largest number of runs.
      say: shows a line to the user.
    """

    def __init__(
        self,
        short_runs: ShortRuns,
        tables: EmbeddingConfig,
        *,
        seeds: Sequence[int],
        most: int,
        say: Callable[[str], None],
    ) -> None:
        self._short_runs, self._tables, self._seeds, self._most, self._say = short_runs, tables, seeds, most, say
        self._runs: dict[Choice, list[ShortRun]] = {}
        self._kept = 0

    def measure(self, batch_size: int) -> Measured:
        """Train the configured model, the smallest dims, doubled dims and a larger batch.

        If the smallest dims of all tables together lose something measurable, or have no result, single tables are
        trained too, those that save the most bytes first, and then combinations. A third of these runs, at most those
        of three choices, is left for combinations.

        Raises:
          DataError: the configured model has no result.
          PreemptionError: SIGTERM stopped a run.
        """
        least = smallest(self._tables)
        self._train([AS_CONFIGURED])
        self._losses()  # an error here spares the other runs
        self._train([least, doubled(self._tables), larger_batch(batch_size)])
        losses = self._losses()
        together = losses.of(least)
        if together is None or together.counted != 0:
            alone = singles(self._tables)
            count = self._left - min(_COMBINATIONS, self._left // 3)
            self._train(alone[:count])
            if alone[count:]:
                left_out = ", ".join(one.words for one in alone[count:])
                self._say(f"not trained alone, because `--runs` is {self._most}: {left_out}")
            self._train_combinations(self._losses())
        return self._measured()

    def measure_more(self, choices: Sequence[Choice]) -> Measured | None:
        """Train choices that the plan would recommend; None if all were trained, or no runs are left.

        Raises:
          PreemptionError: SIGTERM stopped a run.
        """
        done = self._done
        self._train(choices)
        return self._measured() if self._done > done else None

    def _measured(self) -> Measured:
        runs = [one for done in self._runs.values() for one in done]
        return Measured(figures_of(self._runs)[0], self._losses(), runs, self._kept, sum(one.seconds for one in runs))

    def _train_combinations(self, losses: Losses) -> None:
        """Train the smallest combination that should lose nothing, and then some of the smaller ones."""
        steps = chain(self._tables, loss_of(losses))
        without_loss = [at for at, one in enumerate(steps) if (losses.of(one) or _NOTHING).counted <= 0]
        first = without_loss[-1:]
        smaller = [one for one in steps[max(first, default=-1) + 1 :] if one not in self._runs]
        self._train([steps[at] for at in first])
        self._train(thinned(smaller, self._left - _WINNERS))

    @property
    def _done(self) -> int:
        return sum(map(len, self._runs.values()))

    @property
    def _left(self) -> int:
        """Number of choices that can still be trained with every seed."""
        return max(0, self._most - self._done) // len(self._seeds)

    def _losses(self) -> Losses:
        name, figures = figures_of(self._runs)
        configured = {table.name: table.dim for table in self._tables.tables}
        return Losses(figures, higher_is_better=name == "AUC", configured=configured)

    def _train(self, choices: Iterable[Choice]) -> None:
        for choice in choices:
            if choice in self._runs:
                continue
            if not self._left:
                self._say(f"not trained, because `--runs` is {self._most}: {choice.words}")
                continue
            for seed in self._seeds:
                done = self._short_runs.kept(self._tables, choice, seed)
                self._kept += done is not None
                was_kept, done = done is not None, done or self._short_runs.run(self._tables, choice, seed)
                self._runs.setdefault(choice, []).append(done)
                self._say(self._line(done, was_kept=was_kept))
                if done.error:
                    break  # another seed would most likely fail in the same way

    def _line(self, done: ShortRun, *, was_kept: bool) -> str:
        if done.error:
            return f"run {self._done}: {done.choice}, seed {done.seed}: failed: {done.error}"
        figure = f"loss {done.loss:.4f}" if done.auc is None else f"AUC {done.auc:.4f}"
        left = (self._most - self._done) * sum(one.seconds for d in self._runs.values() for one in d) / self._done
        time = "kept" if was_kept else f"{done.seconds:.1f} s, at most {left / 60:.1f} min left"
        return f"run {self._done} of at most {self._most}: {done.choice}, seed {done.seed}: {figure}; {time}"
