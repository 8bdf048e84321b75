"""Prints a plan in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from pipelines.choices.memory import size_words
from pipelines.choices.plan import Offer, Plan, SlicePlan
from pipelines.console.plain_table import print_table
from pipelines.console.terminal import PLAIN


def print_plan(plan: Plan, console: Console) -> None:
    """Print the tables, and for each slice the choices that are worth a look, and the command for the best."""
    console.print(f"sizes: {plan.sizes}", **PLAIN)
    print_table(console, "", [_table(row) for row in plan.tables])
    for line in [*_runs(plan), *plan.notes]:
        console.print(line, **PLAIN)
    for one in plan.slices:
        title = f"{one.name}: {one.chips} chips, {size_words(one.budget)} on a core, tables {one.placement}"
        print_table(console, title, [_row(plan, offer) for offer in shown_offers(one)])
        if one.best is None:
            console.print(f"no choice fits: {one.remedy}", style="red", **PLAIN)
        else:
            console.print(one.offers[one.best].command, **PLAIN)


def shown_offers(planned: SlicePlan) -> list[Offer]:
    """Return the offers that a reader compares: as configured, on the front, or measured; all if nothing is known."""
    known = any(offer.source != "unknown" for offer in planned.offers)
    chosen = [
        offer
        for at, offer in enumerate(planned.offers)
        if not known or at in (0, planned.best) or offer.front or offer.source == "measured"
    ]
    return sorted(chosen, key=lambda offer: -offer.table_bytes)


def loss_words(offer: Offer) -> str:
    """Return the loss in words; a difference within the noise is not called a difference."""
    if offer.loss is None or offer.noise is None:
        return "unknown"
    if offer.loss == 0.0 and offer.choice == "as configured":
        return "0"
    if abs(offer.loss) <= offer.noise:
        return f"none beyond noise of {offer.noise:.4f}"
    return f"{offer.loss:+.4f} (noise {offer.noise:.4f})"


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


def _row(plan: Plan, offer: Offer) -> dict[str, str]:
    compiled = offer.compiler
    by_compiler = "-" if compiled is None else compiled["stage"]
    if compiled is not None and compiled["core_bytes"]:
        by_compiler = size_words(compiled["core_bytes"])
    return {
        "choice": offer.choice if len(offer.choice) <= _WIDTH else f"{offer.choice[: _WIDTH - 3]}...",
        "front": "*" if offer.front else "",
        "tables, slots": size_words(offer.table_bytes),
        "core, compiled": by_compiler,
        "fits": "yes" if offer.fits else "NO",
        f"loss of {plan.figure}": loss_words(offer),
        "source": offer.source,
        "served rows": size_words(offer.served_bytes),
        "batch": f"{offer.batch_size:,}",
        "stacks": "-" if offer.stacks is None else str(offer.stacks),
    }


_WIDTH = 44
