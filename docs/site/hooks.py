"""Hooks of mkdocs: pages that are outside of `docs`, and links that lead there."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Pages outside of `docs`, and their places in the site.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
    "kubeflow/README.md": "clusters.md",
}
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s:]+?)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are outside of `docs`."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to pages of the site, and write links to source files as the file's path."""
    place = page.file.src_uri
    source = next((source_page for source_page, other in OUTSIDE.items() if other == place), f"docs/{place}")

    def replaced(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        inside = OUTSIDE.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if inside is None or (ROOT / target).is_dir() or target.endswith(".py"):
            return text if text.strip("`") == target else f"{text} (`{target}`)"
        return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(place) or '.')}{anchor})"

    parts = re.split(r"(```.*?```|`[^`\n]*`)(?![^\[]*\]\()", markdown, flags=re.DOTALL)
    return "".join(part if part.startswith("`") else _LINK.sub(replaced, part) for part in parts)
