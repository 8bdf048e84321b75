"""Shows the limits of SparseCores in the report of a run."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from components.sparse_cores.table_limits import read_sparse_core_limits
from embedding_core.schema import Json

NAME = "sparse_cores"
"""Key of the figures in the report."""


def figures(table_configs: str) -> Json | None:
    """Read the limits that TableConfigGen wrote into an artifact; None if the slice has no SparseCores."""
    return read_sparse_core_limits(table_configs)


def html(limits: Json, environment: jinja2.Environment) -> Markup:
    """Render the figures as a section of the page."""
    template = environment.from_string(Path(__file__).with_suffix(".html.jinja").read_text())
    return Markup(template.render(limits=limits))  # noqa: S704 -- the environment escapes
