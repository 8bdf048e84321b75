"""`tfx-embeddings lineage`: from what is served back to files and spans, and from a file forward to every model."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from embedding_core.errors import ConfigError, DataError, EmbeddingError
from pipelines.config import load_config
from pipelines.console.terminal import SafeConsole
from pipelines.lineage.ancestors import generations, lineages_of
from pipelines.lineage.graph import Node, downstream, lineage_tree, open_store, read_graph, upstream
from pipelines.lineage.records import files_of, read_records
from pipelines.lineage.rollbacks import ROLLBACK, with_rollbacks
from pipelines.report.lineage_figures import collect_page, find_token
from pipelines.report.lineage_page import save_page

__all__ = ["main"]

_PUSHED, _CHECKPOINT, _MODEL = "PushedModel", "components.EmbeddingCheckpoint", "Model"


def main(arguments: Sequence[str] | None = None) -> int:
    """`tfx-embeddings lineage (CONFIG | --recorded FOLDER) [...]`: print a lineage, or write it as a page.

    Returns:
      0; every error is raised.
    """
    given = _parser().parse_args(arguments)
    graph = _graph(given)
    console = SafeConsole(highlight=False)
    if given.forward is not None:
        console.print(*_forward(graph, given.forward), sep="\n", markup=False, soft_wrap=True)
        return 0
    nodes = upstream(graph, _start(graph, given))
    start = next(iter(nodes.values()))
    line = lineages_of(graph, start.id, _pushes(graph))
    if given.token is not None:
        console.print(*_token(line, given.token), sep="\n", markup=False, soft_wrap=True)
    if given.html is not None:
        before = _pushed_before(graph, start)
        page = collect_page(nodes, None if before is None else upstream(graph, before), line)
        save_page(page, given.html, _title(nodes))
        console.print(f"lineage: {given.html}", markup=False, soft_wrap=True)
    elif given.token is None:
        _print_tree(console, line)
    return 0


def _print_tree(console: Console, line: Sequence[Mapping[int, Node]]) -> None:
    """The artifacts of the run itself; of earlier ones those that it took over, and how to see more of them."""
    *earlier, own = generations(line)
    sources = {number: dataclasses.replace(node, inputs=()) for number, node in own.sources.items()}
    console.print(lineage_tree({**own.nodes, **sources}))
    start = next(iter(own.nodes.values()))
    if ROLLBACK in start.facts:
        console.print(_rolled_back(start), markup=False, soft_wrap=True)
    if earlier:
        versions = ", ".join(one.version for one in reversed(earlier))
        console.print(f"out of earlier versions, the newest first (--version tells of one): {versions}", soft_wrap=True)


def _rolled_back(node: Node) -> str:
    """What a copy is: of which version, since when."""
    facts = node.facts[ROLLBACK]
    return (
        f"version {node.facts['pushed_version']} is version {facts['of']} again: a rollback from version "
        f"{facts['from']}, made {facts['made']}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tfx-embeddings lineage", description="What a pushed model was made of.")
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="the YAML file of the pipeline")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--recorded", metavar="FOLDER", help="read what lies beside the artifacts below this folder")
    parser.add_argument("--version", type=int, help="the pushed version; the newest by default")
    parser.add_argument("--checkpoint", metavar="URI", help="start from this EmbeddingCheckpoint")
    parser.add_argument("--token", metavar="VOCABULARY=TOKEN", help="say where this token's row is")
    parser.add_argument("--forward", metavar="FILE", help="which models saw this file of data")
    parser.add_argument("--html", metavar="FILE", help="write a page in place of the tree")
    return parser


def _graph(given: argparse.Namespace) -> dict[int, Node]:
    if (given.config is None) == (given.recorded is None):
        raise ConfigError("lineage needs a CONFIG, or --recorded FOLDER: give one of the two.")
    if given.recorded is not None:
        return with_rollbacks(read_records(given.recorded))
    config = load_config(given.config, given.overrides)
    return with_rollbacks(read_graph(open_store(config.metadata_path), config.name))


def _start(graph: Mapping[int, Node], given: argparse.Namespace) -> int:
    """The artifact that is asked for.

    Raises:
      DataError: there is none such.
    """
    if given.checkpoint is not None:
        found = [
            one.id for one in graph.values() if one.type == _CHECKPOINT and one.uri == given.checkpoint.rstrip("/")
        ]
        if not found:
            known = [one.uri for one in graph.values() if one.type == _CHECKPOINT]
            some = ", ".join(reversed(known[-3:])) + (f" or {len(known) - 3} older ones" if len(known) > 3 else "")
            raise DataError(f"there is no checkpoint {given.checkpoint!r}: choose from {some or 'none'}.")
        return found[0]
    pushed = _pushes(graph)
    if given.version is not None:
        pushed = {version: one for version, one in pushed.items() if version == given.version}
    if not pushed:
        what = "no version" if given.version is None else f"no version {given.version!r}"
        raise DataError(f"{what} was pushed by this pipeline: look into its serving folder.")
    return pushed[max(pushed)]


def _pushes(graph: Mapping[int, Node]) -> dict[int, int]:
    """The artifact of every version that was pushed."""
    return {
        int(one.facts["pushed_version"]): one.id
        for one in graph.values()
        if one.type == _PUSHED and one.facts.get("pushed")
    }


def _pushed_before(graph: Mapping[int, Node], node: Node) -> int | None:
    version = node.facts.get("pushed_version")
    earlier = {one: found for one, found in _pushes(graph).items() if version is not None and one < int(version)}
    return earlier[max(earlier)] if earlier else None


def _title(nodes: Mapping[int, Node]) -> str:
    start = next(iter(nodes.values()))
    version: Any = start.facts.get("pushed_version")
    return f"{start.type.rpartition('.')[2]} {start.id}" if version is None else f"version {version}"


def _token(line: Sequence[Mapping[int, Node]], text: str) -> list[str]:
    """Where the token's row is, and what the runs before knew of it, the newest first."""
    vocabulary, equals, token = text.partition("=")
    if not equals:
        raise ConfigError(f"--token {text!r}: it must be VOCABULARY=TOKEN, such as company=Flash Cab.")
    found = find_token(line[-1], vocabulary, token)
    if found is None:
        return [f"token {token!r} of {vocabulary!r} has no row in this model: it is looked up as an unknown token."]
    tables = ", ".join(found.tables) or "no table"
    place = f"row {found.row} of {tables}, counted {found.count:,} times"
    lines = [f"token {token!r} of {vocabulary!r}: {place}, in the vocabulary with digest {found.digest}"]
    for lineage, one in zip(reversed(line), reversed(generations(line)), strict=True):
        what = _known(lineage, vocabulary, token)
        lines.append(f"  version {one.version}: {what} in {' to '.join(one.data) or 'data that is not recorded'}")
    return lines


def _known(lineage: Mapping[int, Node], vocabulary: str, token: str) -> str:
    try:
        found = find_token(lineage, vocabulary, token)
    except EmbeddingError:
        return "its vocabulary is gone, or damaged"
    return "no row" if found is None else f"row {found.row}, counted {found.count:,} times"


def _forward(graph: Mapping[int, Node], path: str) -> list[str]:
    """A line for every model that saw the file, and for every push of it."""
    starts = [node.id for node in graph.values() if any(_is(file["path"], path) for file in files_of(node))]
    if not starts:
        raise DataError(f"no examples were made of {path!r}: give the path of a file of data, or the end of it.")
    lines = [f"{path}: in {len(starts)} Examples"]
    for node in downstream(graph, starts).values():
        if node.type == _MODEL:
            lines.append(f"model #{node.id} {node.uri}")
        elif node.type == _PUSHED and node.facts.get("pushed"):
            lines.append(f"pushed version {node.facts['pushed_version']} {node.facts['pushed_destination']}")
    return lines


def _is(recorded: str, asked: str) -> bool:
    return recorded == asked or recorded.endswith("/" + asked.lstrip("/"))
