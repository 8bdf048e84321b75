"""Renders a plan as one self-contained HTML file, and saves it with the same content as JSON."""

from __future__ import annotations

import dataclasses
import json
import os

from components.installed import is_installed
from pipelines.choices.memory import size_words
from pipelines.choices.plan import Plan, SlicePlan
from pipelines.choices.plan_screen import best_words, loss_words, shown_offers
from pipelines.console.output_files import write_output


def save_plan(plan: Plan, folder: str) -> list[str]:
    """Write `plan.json` and, if the packages of the page are installed, `plan.html`.

    Returns:
      The paths of the files, the page first.
    """
    path = os.path.join(folder, "plan.json")
    write_output("--out", path, json.dumps(dataclasses.asdict(plan), indent=1) + "\n")
    if not (is_installed("jinja2") and is_installed("matplotlib")):
        return [path]
    page = os.path.join(folder, "plan.html")
    write_output("--out", page, plan_html(plan))
    return [page, path]


def plan_html(plan: Plan) -> str:
    """Render the page; a browser loads nothing else for it."""
    import jinja2  # a package of the pipeline

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipelines"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(size=size_words, loss=loss_words)
    html: str = environment.get_template("plan.html.jinja").render(
        plan=plan,
        parts=[
            {"plan": one, "offers": shown_offers(one), "words": best_words(one), "chart": _chart(plan, one)}
            for one in plan.slices
        ],
    )
    return html


def _chart(plan: Plan, planned: SlicePlan) -> str:
    """Draw bytes against loss: measured and estimated choices, and the front; empty without losses."""
    from pipelines.report.charts import Point, front_chart

    by_compiler = any(offer.compiler and offer.compiler["core_bytes"] for offer in planned.offers)
    points = [
        Point(offer.core_bytes / 2**20, offer.loss, offer.noise or 0.0, offer.source == "measured", offer.front)
        for offer in planned.offers
        if offer.loss is not None and (offer.compiler is not None or not by_compiler)
    ]
    if not points:
        return ""
    what = "on a core, by the compiler" if by_compiler else "of tables and slots on a core"
    return front_chart(points, x_label=f"MiB {what}", y_label=plan.difference)
