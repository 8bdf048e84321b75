"""Defines `tfx-embeddings lineage`: from a served model back to its files, or from a file forward to its models."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from embedding_core.errors import ConfigError, DataError, EmbeddingError
from pipelines.commands.shared_options import refuse_beside
from pipelines.config import load_config
from pipelines.console.terminal import PLAIN, SafeConsole, write_output
from pipelines.lineage.ancestors import ROLLBACK, generations, lineages_of, pushes_of, with_rollbacks
from pipelines.lineage.graph import Node, downstream, files_of, open_store, read_graph, read_records, upstream
from pipelines.report.lineage_page import collect_page, find_token, lineage_html

# Draws a lineage as a tree for a terminal.


def lineage_tree(nodes: Mapping[int, Node]) -> Tree:
    """Draw the lineage as a tree for a terminal; an artifact that occurs twice is expanded only once."""
    root = next(iter(nodes.values()))
    tree = Tree(_label(root))
    _grow(tree, root, nodes, {root.id})
    return tree


def _grow(tree: Tree, node: Node, nodes: Mapping[int, Node], shown: set[int]) -> None:
    for parent in (nodes[input_] for input_ in node.inputs):
        if parent.id in shown:
            tree.add(f"[dim]{parent.type} #{parent.id} (above)[/dim]")
            continue
        shown.add(parent.id)
        _grow(tree.add(_label(parent)), parent, nodes, shown)


def _label(node: Node) -> str:
    made = "imported" if node.producer is None else node.producer.node
    if node.producer is not None and node.producer.seconds is not None:
        made += f", {node.producer.seconds:.1f} s"
    facts = "".join(
        f"\n  {key}: {_short(value)}" for key, value in sorted(node.facts.items()) if value not in ("", None)
    )
    return f"[bold]{node.type}[/bold] #{node.id} [dim]({made})[/dim]\n  {escape(node.uri)}{facts}"


def _short(value: object, limit: int = 160) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return escape(text if len(text) <= limit else f"{text[: limit - 1]}…")


_PUSHED, _CHECKPOINT, _MODEL = "PushedModel", "components.EmbeddingCheckpoint", "Model"


def show(
    config: str | None,
    overrides: Sequence[str] = (),
    *,
    recorded: str | None = None,
    version: int | None = None,
    checkpoint: str | None = None,
    token: str | None = None,
    forward: str | None = None,
    html: str | None = None,
) -> None:
    """Print a lineage, or write it as a page; the command line describes the arguments.

    Raises:
      ConfigError: neither or both of `config` and `recorded` are given, `token` is not VOCABULARY=TOKEN, or two
        options exclude each other.
      DataError: the artifact does not exist.
    """
    if forward is not None:
        refuse_beside("--forward", html=html, token=token, version=version, checkpoint=checkpoint)
    if checkpoint is not None:
        refuse_beside("--checkpoint", version=version)
    if recorded is not None:
        refuse_beside("--recorded", set=overrides or None)
    graph, destination = _graph(config, overrides, recorded)
    console = SafeConsole(highlight=False)
    if forward is not None:
        console.print(*_forward(graph, forward), sep="\n", **PLAIN)
        return
    nodes = upstream(graph, _start(graph, destination, version, checkpoint))
    start = next(iter(nodes.values()))
    line = lineages_of(graph, start.id, _pushes(graph, destination))
    if token is not None:
        console.print(*_token(line, token), sep="\n", **PLAIN)
    if html is not None:
        before = _pushed_before(graph, start)
        page = collect_page(nodes, None if before is None else upstream(graph, before), line)
        write_output("--html", html, lineage_html(page, _title(nodes)))
        console.print(f"lineage: {html}", **PLAIN)
    elif token is None:
        _print_tree(console, line)


def _print_tree(console: Console, line: Sequence[Mapping[int, Node]]) -> None:
    """Print the artifacts of the run, those that it used from previous runs, and the versions that it descends from."""
    *previous, current = generations(line)
    sources = {number: dataclasses.replace(node, inputs=()) for number, node in current.sources.items()}
    console.print(lineage_tree({**current.nodes, **sources}))
    start = next(iter(current.nodes.values()))
    if ROLLBACK in start.facts:
        console.print(_rolled_back(start), **PLAIN)
    if previous:
        versions = ", ".join(generation.version for generation in reversed(previous))
        console.print(f"descends from these versions, the newest first (see --version): {versions}", soft_wrap=True)


def _rolled_back(node: Node) -> str:
    """Describe a rollback: the version that it copies, the one that it replaced, and when."""
    facts = node.facts[ROLLBACK]
    return (
        f"version {node.facts['pushed_version']} is version {facts['of']} again: a rollback from version "
        f"{facts['from']}, made {facts['made']}"
    )


def _graph(config: str | None, overrides: Sequence[str], recorded: str | None) -> tuple[dict[int, Node], str | None]:
    """Read all artifacts; return them, and the folder that the configuration pushes to."""
    if (config is None) == (recorded is None):
        raise ConfigError("lineage needs a CONFIG, or --recorded FOLDER: give one of the two.")
    if config is None:
        return with_rollbacks(read_records(str(recorded))), None
    checked = load_config(config, overrides)
    graph = read_graph(open_store(checked.metadata_path), checked.name)
    return with_rollbacks(graph), checked.push_destination


def _start(graph: Mapping[int, Node], destination: str | None, version: int | None, checkpoint: str | None) -> int:
    """Find the artifact to start from.

    Raises:
      DataError: the artifact does not exist.
    """
    if checkpoint is not None:
        known = {node.uri: node.id for node in reversed([*graph.values()]) if node.type == _CHECKPOINT}
        if checkpoint.rstrip("/") not in known:
            some = ", ".join([*known][:3]) + (f" or {len(known) - 3} older ones" if len(known) > 3 else "")
            raise DataError(f"unknown checkpoint {checkpoint!r}: choose from {some or 'none'}.")
        return known[checkpoint.rstrip("/")]
    pushed = _pushes(graph, destination)
    if not pushed if version is None else version not in pushed:
        what = "no version" if version is None else f"no version {version!r}"
        raise DataError(f"{what} was pushed by this pipeline: see the versions in its serving folder.")
    if version is not None:
        return pushed[version]
    there = () if destination is None else pushes_of(graph, destination)
    return pushed[max(there)] if there else max(pushed.values())


def _pushes(graph: Mapping[int, Node], destination: str | None) -> dict[int, int]:
    """Return the id of the PushedModel of every version; of a number in several folders, that of `destination`."""
    there = {} if destination is None else pushes_of(graph, destination)
    return {version: push.id for version, push in {**pushes_of(graph), **there}.items()}


def _pushed_before(graph: Mapping[int, Node], node: Node) -> int | None:
    if "pushed_version" not in node.facts:
        return None
    pushes = pushes_of(graph, os.path.dirname(node.facts["pushed_destination"]))
    older = [number for number in pushes if number < int(node.facts["pushed_version"])]
    return pushes[max(older)].id if older else None


def _title(nodes: Mapping[int, Node]) -> str:
    start = next(iter(nodes.values()))
    version = start.facts.get("pushed_version")
    return f"{start.type.rpartition('.')[2]} {start.id}" if version is None else f"version {version}"


def _token(line: Sequence[Mapping[int, Node]], text: str) -> list[str]:
    """Describe the token's row in this model, then in each version of its lineage, the newest first."""
    vocabulary, equals, token = text.partition("=")
    if not equals:
        raise ConfigError(f"--token {text!r}: it must be VOCABULARY=TOKEN, such as company=Flash Cab.")
    row = find_token(line[-1], vocabulary, token)
    if row is None:
        return [f"token {token!r} of {vocabulary!r} has no row in this model: it is looked up as an unknown token."]
    tables = ", ".join(row.tables) or "no table"
    where = f"row {row.row} of {tables}, counted {row.count:,} times"
    lines = [f"token {token!r} of {vocabulary!r}: {where}, in the vocabulary with digest {row.digest}"]
    for lineage, generation in zip(reversed(line), reversed(generations(line)), strict=True):
        what = _row_words(lineage, vocabulary, token)
        lines.append(
            f"  version {generation.version}: {what} in {' to '.join(generation.data) or 'data that is not recorded'}"
        )
    return lines


def _row_words(lineage: Mapping[int, Node], vocabulary: str, token: str) -> str:
    try:
        row = find_token(lineage, vocabulary, token)
    except EmbeddingError:
        return "its vocabulary is gone, or damaged"
    return "no row" if row is None else f"row {row.row}, counted {row.count:,} times"


def _forward(graph: Mapping[int, Node], path: str) -> list[str]:
    """Return a heading, then a line for every model that was trained on the file, and every push of such a model."""
    read = {node.id: [file for file in files_of(node) if _is(file["path"], path)] for node in graph.values()}
    trained = [node for node, files in read.items() if any("split" not in file for file in files)]
    judged = [node for node, files in read.items() if files and node not in trained]
    if not trained and not judged:
        raise DataError(f"no Examples were made of {path!r}: give the path of a file of data, or the end of it.")
    lines = [f"{path}: in {len(trained)} Examples" + (f", and for evaluation alone in {len(judged)}" if judged else "")]
    for node in downstream(graph, trained).values():
        if node.type == _MODEL:
            lines.append(f"model #{node.id} {node.uri}")
        elif node.type == _PUSHED and node.facts.get("pushed"):
            lines.append(f"pushed version {node.facts['pushed_version']} {node.facts['pushed_destination']}")
    return lines


def _is(recorded: str, asked: str) -> bool:
    return recorded == asked or (not os.path.isabs(asked) and recorded.endswith(f"/{asked}"))
