"""Draws a lineage as a tree for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.markup import escape
from rich.tree import Tree

from pipelines.lineage.graph import Node


def lineage_tree(nodes: Mapping[int, Node]) -> Tree:
    """Draw the lineage as a tree for a terminal; an artifact that occurs twice is expanded only once."""
    root = next(iter(nodes.values()))
    tree = Tree(_label(root))
    _grow(tree, root, nodes, {root.id})
    return tree


def _grow(tree: Tree, node: Node, nodes: Mapping[int, Node], shown: set[int]) -> None:
    for parent in (nodes[one] for one in node.inputs):
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
