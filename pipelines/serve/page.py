"""Makes the page of `serve`: to try a request, to see the neighbours of a token, and the rows of a table."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jinja2
import tensorflow as tf

from embedding_core.columns import input_name
from embedding_core.display import shown_token
from embedding_core.errors import EmbeddingError
from embedding_core.schema import Json
from pipelines.report.run_figures import json_values
from pipelines.serve.rest_form import Version, describe_inputs, json_of, predict, rest_values
from pipelines.serve.table_rows import TableRows

if TYPE_CHECKING:
    from pipelines.serve.http_server import Served

_ROWS, _NEIGHBOURS = 20, 10


def page_html(served: Served, name: str, fields: Mapping[str, str]) -> str:
    """Render the page.

    Args:
      served: the version that answers.
      name: name of the model.
      fields: `request`, JSON to answer; or `table`, and the `token` or number of a `row` to show the neighbours of, or
        `start`, the number of the first row to list.
    """
    shown: Json = {"problem": "", "answer": "", "tables": [], "table": None, "private": False}
    shown |= {"request": fields.get("request", ""), "rows": [], "neighbours": []}
    try:
        tables = served.tables
        shown["tables"] = tables.config.tables
        shown["request"] = shown["request"] or json.dumps(sample_request(served, tables), indent=1)
        shown |= _rows_shown(tables, fields)
    except EmbeddingError as error:
        shown["problem"] = str(error)
    try:
        shown["answer"] = _answered(served, fields["request"]) if "request" in fields else ""
    except EmbeddingError as error:
        shown["problem"] = str(error)
    signatures = {key: describe_inputs(specs) for key, specs in served.inputs.items()}
    html: str = _template().render(
        **shown,
        name=name,
        number=served.number,
        signatures=signatures,
        token=fields.get("token", "") if shown["neighbours"] and not shown["private"] else "",
    )
    return html


def _rows_shown(tables: TableRows, fields: Mapping[str, str]) -> Json:
    """Return what of a table is asked for: its neighbours, or its rows; nothing if no table is named."""
    if "table" not in fields:
        return {}
    table = tables.table(fields["table"])
    shown: Json = {"table": table, "private": tables.is_private(table)}
    if "row" in fields or fields.get("token"):
        number = fields["row"] if "row" in fields else str(tables.row_of(table, fields["token"]))
        return {**shown, "neighbours": tables.neighbours(table, number, _NEIGHBOURS)}
    return {**shown, "rows": tables.rows(table, fields.get("start", "0"), _ROWS)}


def _answered(version: Version, request: str) -> str:
    """Answer a request as text, with tokens as digests if anything of the model is private."""
    answer = predict(version, json_of(request))
    if not version.facts.get("public", {}).get("answers", False):
        answer = {key: value if key == "model_version" else _masked(value) for key, value in answer.items()}
    return json.dumps(answer, indent=1)


def _masked(value: Any) -> Any:
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    return shown_token(value.encode(), private=True) if isinstance(value, str) else value


def sample_request(version: Version, tables: TableRows) -> Json:
    """Make a request for the best candidates if the model has a signature for it, else for a row of raw columns.

    The row is the first that the report shows. Without it, public columns get the first token of their vocabulary,
    other texts are empty, and other numbers are 1.
    """
    name = next((key for key in ("top_k", "raw") if key in version.inputs), min(version.inputs))
    public = version.facts.get("public", {}).get("columns", ())
    tokens = {
        input_name(feature.column.name): tables.first_token(tables.config.table_of(feature.name))
        for feature in tables.config.features
        if feature.column is not None and feature.column.name in public and not feature.column.after_transform
    }
    specs, sample = version.inputs[name], tables.sample
    if specs.keys() <= sample.keys():
        row = {key: rest_values(json_values(value[:1]))[0] for key, value in sample.items() if key in specs}
    else:
        names = dict.fromkeys([*(key for key in tokens if key in specs), *sorted(specs)])
        row = {key: _value(specs[key], tokens.get(key)) for key in names}
    return {"signature_name": name, "instances": [row]}


def _value(spec: tf.TensorSpec, token: str | None) -> Any:
    """Make a value of a column for one row: a list if the column is multivalent."""
    value: Any = token or ""
    if spec.dtype != tf.string:
        try:
            value = spec.dtype.as_numpy_dtype(token or 1).item()
        except (ValueError, OverflowError):  # the token is of a text column, which shares the vocabulary
            value = spec.dtype.as_numpy_dtype(1).item()
    return value if spec.shape.rank == 1 else [value]


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("pipelines", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("serve/serve.html.jinja")
