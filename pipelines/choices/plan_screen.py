"""Prints a plan in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from pipelines.choices.choice import AS_CONFIGURED
from pipelines.choices.memory import size_words
from pipelines.choices.plan import Offer, Plan, SlicePlan
from pipelines.console.plain_table import print_table
from pipelines.console.terminal import PLAIN

_WIDTH = 32  # characters of a choice; `plan.html` has the whole


def print_plan(plan: Plan, console: Console) -> None:
    """Print the tables, and for each slice the choices that are worth a look, and the command for the best."""
    console.print(f"sizes: {plan.sizes}", **PLAIN)
    print_table(console, "", [_table(row) for row in plan.tables])
    for line in [*_runs(plan), *_served(plan), *plan.notes]:
        console.print(line, **PLAIN)
    for one in plan.slices:
        title = f"{one.name}: {one.chips} chips, {size_words(one.budget)} on a core, tables {one.placement}"
        print_table(console, title, [_row(plan, offer) for offer in shown_offers(one)])
        if one.best is None:
            console.print(f"no choice fits: {one.remedy}", style="red", **PLAIN)
        else:
            for line in best_words(one):
                console.print(line, **PLAIN)
            console.print(one.offers[one.best].command, **PLAIN)


def best_words(planned: SlicePlan) -> list[str]:
    """Say what is uncertain about the recommended choice: short runs did not train it, or what may be better."""
    if planned.best is None:
        return []
    best, known = planned.offers[planned.best], any(offer.source != "unknown" for offer in planned.offers)
    lines = []
    if known and best.source == "unknown":
        lines.append(f"of the choices that fit, no loss is known; the first is {best.choice}")
    elif best.source == "estimated":
        lines.append(f"of the choices that fit, none was trained; the loss of {best.choice} is estimated")
    if planned.untrained not in (None, planned.best):
        better = planned.offers[planned.untrained]
        lines.append(f"not trained, because no runs were left, and perhaps better: {better.choice}")
    return lines


def shown_offers(planned: SlicePlan) -> list[Offer]:
    """Return the offers that a reader compares: as configured, on the front, or measured; all if nothing is known.

    If the loss of the recommended choice is unknown, all that fit are shown.
    """
    known = any(offer.source != "unknown" for offer in planned.offers)
    unknown_best = planned.best is not None and planned.offers[planned.best].source == "unknown"
    chosen = [
        offer
        for at, offer in enumerate(planned.offers)
        if not known
        or at in (0, planned.best, planned.untrained)
        or offer.front
        or offer.source == "measured"
        or (unknown_best and offer.fits)
    ]
    return sorted(chosen, key=lambda offer: -offer.table_bytes)


def loss_words(offer: Offer) -> str:
    """Return the loss with its noise, and "estimated" if it is not measured; 0 for a measured one that is noise."""
    if offer.loss is None or offer.noise is None:
        return "unknown"
    if offer.choice == AS_CONFIGURED.words:
        return "0 by definition"
    measured = offer.source == "measured"
    value = "0" if not offer.loss or (measured and abs(offer.loss) <= offer.noise) else f"{offer.loss:+.4f}"
    return f"{value} ±{offer.noise:.4f}{'' if measured else ' estimated'}"


def _table(row: dict[str, object]) -> dict[str, str]:
    dims = row["dims"]
    return {
        "table": str(row["table"]),
        "rows": f"{row['rows']:,}",
        "dims": " ".join(map(str, dims)) if isinstance(dims, list) else "",
        "optimizer": str(row["optimizer"]),
        "bytes, slots too": f"{row['bytes']:,}",
    }


def _runs(plan: Plan) -> Iterator[str]:
    if not plan.figure:
        return
    failed = sum(bool(one["error"]) for one in plan.runs)
    deviation = "?" if plan.deviation is None else f"{plan.deviation:.4f}"
    yield (
        f"short runs: {len(plan.runs)} on {plan.rows}, {plan.seconds:,.0f} s{f', {failed} failed' if failed else ''}; "
        f"{plan.figure} varies by {deviation} (standard deviation) from seed to seed"
    )


def _served(plan: Plan) -> Iterator[str]:
    if plan.float16:
        settings = " ".join(f"--set {one}" for one in plan.float16)
        yield f"{settings} halves the served rows; estimated loss: 0; it does not change the memory of a TPU"


def _row(plan: Plan, offer: Offer) -> dict[str, str]:
    choice = f"{'*' if offer.front else ' '} {offer.choice}"
    compiled = offer.compiler
    core = "-" if compiled is None else compiled["stage"]
    if compiled is not None and compiled["core_bytes"]:
        core = size_words(compiled["core_bytes"])
    return {
        "  choice (* front)": choice if len(choice) <= _WIDTH else f"{choice[: _WIDTH - 3]}...",
        plan.difference: loss_words(offer),
        "tables": size_words(offer.table_bytes),
        "compiled": core,
        "fits": "yes" if offer.fits else "NO",
        "batch": f"{offer.batch_size:,}",
        "served rows": size_words(offer.served_bytes),
        "stacks": "-" if offer.stacks is None else str(offer.stacks),
    }
