"""Reads the figures of a lineage and renders them as one HTML file: a drawing with a box per artifact, and details."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc

from components.artifact_files import read_embedding_config
from embedding_core.display import shown_token
from embedding_core.errors import DataError, EmbeddingError, nearest
from embedding_core.vocabulary import Vocabulary, load_vocabularies, load_vocabulary
from pipelines.lineage.ancestors import Generation, generations
from pipelines.lineage.graph import Node, files_of, json_if_readable, node_of, started_from
from pipelines.report.charts import breakable, health_trends, line_chart
from pipelines.report.run_report import Figures

# Reads the figures of a lineage page: what a pushed model was made of, and what changed since the previous one.

_SAMPLES = 8
_MODEL_FIGURES = ("eval_auc", "eval_loss", "step", "seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyChange:
    """One vocabulary, compared with that of the previous model.

    Attributes:
      name: name of the vocabulary.
      size, coverage, digest: of this model's vocabulary.
      came, went, stayed: numbers of tokens that are new, gone, and in both; None without a previous model.
      new_tokens, lost_tokens: the first 8 of the tokens that came and went, in the order of their vocabulary; empty if
        the column is private.
    """

    name: str
    size: int
    coverage: float
    digest: str
    came: int | None = None
    went: int | None = None
    stayed: int | None = None
    new_tokens: Sequence[str] = ()
    lost_tokens: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRow:
    """The row of one token.

    Attributes:
      row: its row in every table of its vocabulary, from 0.
      count: number of its occurrences.
      digest: digest of the vocabulary that the row belongs to.
      tables: names of the tables of that vocabulary.
    """

    row: int
    count: int
    digest: str
    tables: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """The figures of a lineage page.

    Attributes:
      start: id of the artifact that the page is about.
      nodes: its lineage, the artifact itself first; then the other artifacts of the pushes that it descends from.
      files: by id of an artifact, `path` and `size` of the external files that it was made of.
      vocabularies: changes of the model's vocabularies.
      tables: per table its rows, dim, bytes, and the rows of the previous model, or None.
      remap: per table what a warm start kept, added and dropped; empty without one.
      metrics: by name of a figure, its value and that of the previous model, or None.
      before: version of the previous model, or None.
      line: the pushed models that this one descends from by warm starts, the oldest first, and this one last.
    """

    start: int
    nodes: Mapping[int, Node]
    files: Mapping[int, Sequence[Figures]]
    vocabularies: Sequence[VocabularyChange]
    tables: Sequence[Figures]
    remap: Mapping[str, Figures]
    metrics: Mapping[str, tuple[Any, Any]]
    before: str | None
    line: Sequence[Generation]


def collect_page(
    nodes: Mapping[int, Node],
    before: Mapping[int, Node] | None = None,
    line: Sequence[Mapping[int, Node]] | None = None,
) -> Page:
    """Read the figures of a lineage page.

    Args:
      nodes: a lineage, the artifact that the page is about first.
      before: lineage of the model pushed before it, or None.
      line: lineages of the models that it descends from, the oldest first, then its own; None means only its own.
    """
    start = next(iter(nodes.values()))
    previous = next(iter(before.values())) if before else None
    past, lineages = before or {}, [nodes] if line is None else line
    shown = {**nodes, **{number: node for lineage in lineages for number, node in lineage.items()}}
    return Page(
        start=start.id,
        nodes=shown,
        files={node.id: files for node in shown.values() if (files := files_of(node))},
        vocabularies=_vocabularies(nodes, past),
        tables=_tables(nodes, past),
        remap=_remap(nodes),
        metrics=_metrics(nodes, past),
        before=None if previous is None else str(previous.facts.get("pushed_version", previous.id)),
        line=generations(lineages),
    )


def find_token(nodes: Mapping[int, Node], vocabulary: str, token: str) -> TokenRow | None:
    """Find the row of a token in the model; None if it has none.

    Raises:
      DataError: the vocabulary is unknown, or the lineage has none.
      VocabularyError: the vocabulary is damaged, or its files are gone.
    """
    artifact = node_of(nodes, "components.Vocabularies")
    if artifact is None:
        raise DataError(
            f"{next(iter(nodes.values())).uri!r} was made of no Vocabularies: look the token up in a pushed version."
        )
    known = list(artifact.facts.get("vocabularies", [vocabulary]))
    if vocabulary not in known:
        raise DataError(f"unknown vocabulary {vocabulary!r}: {nearest(vocabulary, known)}")
    loaded = load_vocabulary(artifact.uri, vocabulary)
    row = pc.index(loaded.tokens, pa.scalar(token.encode(), loaded.tokens.type)).as_py()
    if row < 0:
        return None
    return TokenRow(
        row=row,
        count=int(loaded.counts[row]),
        digest=loaded.digest,
        tables=_tables_of(nodes, vocabulary),
    )


def _tables_of(nodes: Mapping[int, Node], vocabulary: str) -> tuple[str, ...]:
    artifact = node_of(nodes, "components.TableConfigs")
    if artifact is None:
        return ()
    config = read_embedding_config(artifact.uri)
    return tuple(table.name for table in config.tables if table.vocabulary == vocabulary)


def _loaded(nodes: Mapping[int, Node]) -> dict[str, Vocabulary]:
    """Return the vocabularies of a lineage; empty if their files are gone or damaged."""
    artifact = node_of(nodes, "components.Vocabularies")
    try:
        return {} if artifact is None else dict(load_vocabularies(artifact.uri))
    except (EmbeddingError, OSError):
        return {}


def _vocabularies(nodes: Mapping[int, Node], before: Mapping[int, Node]) -> list[VocabularyChange]:
    old = _loaded(before)
    return [_vocabulary_change(vocabulary, old.get(name)) for name, vocabulary in sorted(_loaded(nodes).items())]


def _vocabulary_change(vocabulary: Vocabulary, old: Vocabulary | None) -> VocabularyChange:
    facts = VocabularyChange(
        name=vocabulary.name, size=len(vocabulary), coverage=vocabulary.coverage, digest=vocabulary.digest
    )
    if old is None:
        return facts
    came, went = _without(vocabulary.tokens, old.tokens), _without(old.tokens, vocabulary.tokens)
    private = vocabulary.private or old.private
    return dataclasses.replace(
        facts,
        came=len(came),
        went=len(went),
        stayed=len(vocabulary) - len(came),
        new_tokens=() if private else _shown(came),
        lost_tokens=() if private else _shown(went),
    )


def _without(tokens: pa.Array, others: pa.Array) -> pa.Array:
    """Return the tokens that are not among the others, in their order."""
    return tokens.filter(pc.invert(pc.is_in(tokens, value_set=others)))


def _shown(tokens: pa.Array) -> tuple[str, ...]:
    return tuple(shown_token(token, private=False) for token in tokens.slice(0, _SAMPLES).to_pylist())


def _plan(nodes: Mapping[int, Node]) -> Figures:
    artifact = node_of(nodes, "components.TableConfigs")
    path = None if artifact is None else os.path.join(artifact.uri, "plan.json")
    tables: Figures = {} if path is None else json_if_readable(path).get("tables", {})
    return tables


def _tables(nodes: Mapping[int, Node], before: Mapping[int, Node]) -> list[Figures]:
    old = _plan(before)
    return [
        {
            "name": name,
            "rows": table["rows"],
            "dim": table["dim"],
            "bytes": table["table_bytes"] + table["slot_bytes"],
            "rows_before": old[name]["rows"] if name in old else None,
        }
        for name, table in sorted(_plan(nodes).items())
    ]


def _remap(nodes: Mapping[int, Node]) -> dict[str, Figures]:
    """Return what the warm start kept; empty for a cold start."""
    checkpoint = started_from(nodes)
    return {} if checkpoint is None else dict(checkpoint.facts["remap"])


def _metrics(nodes: Mapping[int, Node], before: Mapping[int, Node]) -> dict[str, tuple[Any, Any]]:
    runs = [node_of(part, "ModelRun") for part in (nodes, before)]
    now, then = ({} if run is None else run.facts for run in runs)
    return {name: (now.get(name), then.get(name)) for name in _MODEL_FIGURES if now.get(name) is not None}


# Renders a lineage as one HTML file: a drawing with a box per artifact, and the details of each artifact.

_BOX, _GAP, _STEP = (180, 46), 18, 224
_COLOURS = {"PushedModel": "s3", "Model": "s1", "components.EmbeddingCheckpoint": "s4", "Examples": "s2"}
_HIDDEN = {"content", "data", "health", "ingest", "parity", "remap", "vocabularies"}  # shown as tables, or too long


def lineage_html(page: Page, title: str) -> str:
    """Render the page as one self-contained file: a browser loads nothing else for it.

    Args:
      page: its figures.
      title: title of the page.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipelines"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(figure=_figure, share=_share, size=_size, change=_change, breakable=breakable)
    html: str = environment.get_template("lineage.html.jinja").render(
        page=page,
        title=title,
        parts=[_part(generation) for generation in reversed(page.line)],
        charts=_charts(page.line),
    )
    return html


def _part(generation: Generation) -> Figures:
    """Show one generation: its drawing, with the inputs from previous ones on the left, and its artifacts."""
    sources = {number: dataclasses.replace(node, inputs=()) for number, node in generation.sources.items()}
    return {
        "version": generation.version,
        "drawing": _drawing({**generation.nodes, **sources}),
        "artifacts": [_artifact(node) for node in generation.nodes.values()],
    }


def _charts(line: Sequence[Generation]) -> list[dict[str, str]]:
    """Draw what changed from run to run; nothing for a single run."""
    if len(line) < 2:
        return []
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {"AUC on the eval split": {}, "tokens with a row": {}}
    auc, sizes = charts.values()
    drift = charts["% of rows with a token new to the model"] = {}
    for run, generation in enumerate(line, start=1):
        auc.setdefault("AUC", []).extend([] if generation.auc is None else [(run, generation.auc)])
        for name, size in generation.sizes.items():
            sizes.setdefault(name, []).append((run, size))
        for name, share in generation.drift.items():
            drift.setdefault(name, []).append((run, 100 * share))
    charts |= health_trends([generation.health for generation in line])
    return [
        {"title": title, "svg": line_chart(series, x_label="run")}
        for title, series in charts.items()
        if any(series.values())
    ]


def _artifact(node: Node) -> Figures:
    """Show one artifact."""
    facts = {key: value for key, value in sorted(node.facts.items()) if key not in _HIDDEN and value not in ("", None)}
    return {
        **{field.name: getattr(node, field.name) for field in dataclasses.fields(node)},
        "shown": {**_spans(node), **{key: _figure(value) for key, value in facts.items()}},
        "content": node.facts.get("content"),
        "ingest": node.facts.get("ingest"),
    }


def _spans(node: Node) -> dict[str, str]:
    """Return the spans that Examples were read from; empty without spans."""
    pieces = (node.facts.get("data") or {}).get("pieces", ())
    spans = [str(piece["span"]) for piece in pieces if piece["span"] is not None]
    if not spans:
        return {}
    return {"spans read": spans[0] if len(spans) == 1 else f"{spans[0]} to {spans[-1]}, {len(spans)} of them"}


def _figure(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_figure(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_figure, value))
    return str(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _change(values: Sequence[Any]) -> str:
    """Format the difference of two numbers, with its sign."""
    now, then = values
    if not isinstance(now, int | float) or not isinstance(then, int | float):
        return "-"
    return f"{now - then:+,d}" if isinstance(now, int) and isinstance(then, int) else f"{now - then:+.4g}"


def _drawing(nodes: Mapping[int, Node]) -> str:
    """Draw the graph as an SVG element: sources on the left, what was made of them to the right."""
    corners = _corners(nodes)
    width = max(x for x, _ in corners.values()) + _BOX[0] + 2
    height = max(y for _, y in corners.values()) + _BOX[1] + 2
    lines = [
        _edge(corners[source], corners[node.id])
        for node in nodes.values()
        for source in node.inputs
        if source in corners
    ]
    boxes = [_box(node, *corners[node.id]) for node in nodes.values()]
    return (
        f'<svg viewBox="-1 -1 {width} {height}" width="{width}" height="{height}" class="lineage" '
        f'role="group" aria-label="lineage">{"".join(lines)}{"".join(boxes)}</svg>'
    )


def _corners(nodes: Mapping[int, Node]) -> dict[int, tuple[int, int]]:
    """Compute the corner of each box; its column is the length of the longest path to it from a source."""
    depths: dict[int, int] = {}

    def depth(node: int) -> int:
        if node not in depths:
            depths[node] = 1 + max((depth(input_) for input_ in nodes[node].inputs if input_ in nodes), default=-1)
        return depths[node]

    columns: dict[int, list[int]] = {}
    for node in sorted(nodes):
        columns.setdefault(depth(node), []).append(node)
    tallest = max(map(len, columns.values()))
    pitch = _BOX[1] + _GAP
    return {
        node: (column * _STEP, (tallest - len(members)) * pitch // 2 + row * pitch)
        for column, members in columns.items()
        for row, node in enumerate(members)
    }


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _BOX[0], start[1] + _BOX[1] // 2, end[0], end[1] + _BOX[1] // 2
    bend = max(24, (x2 - x1) // 2)
    curve = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    return f'<path d="{curve}"/>'


def _box(node: Node, x: int, y: int) -> str:
    colour = _COLOURS.get(node.type, "s8")
    kind = escape(node.type.rpartition(".")[2])
    maker = escape("not recorded" if node.producer is None else node.producer.node)
    return (
        f'<a href="#artifact-{node.id}"><title>{escape(node.uri)}</title>'
        f'<rect x="{x}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="6" style="stroke: var(--{colour})"/>'
        f'<text x="{x + 10}" y="{y + 19}" class="kind">{kind}</text>'
        f'<text x="{x + 10}" y="{y + 36}">#{node.id} · {maker}</text></a>'
    )
