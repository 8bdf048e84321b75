"""Finds the code blocks of the pages: those between fences, and those that are indented by four spaces."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "examples/README.md", "kubeflow/README.md")


_BLOCK = re.compile(
    r"""
    ^[ ]* ```(?P<language>\S*) \n (?P<fenced>(?:.*\n)*?) [ ]* ``` [ ]* $
    | (?<=\n\n) (?P<indented>(?: [ ]{4}.*\n | \n(?=\n*[ ]{4}) )+)
    """,
    re.MULTILINE | re.VERBOSE,
)


class Block(NamedTuple):
    """A block of a page: its language as the fence names it ("" if indented), its text, and its first line's number."""

    page: str
    language: str
    text: str
    line: int

    @property
    def first(self):
        return self.text.strip().splitlines()[0].strip() if self.text.strip() else ""


def pages():
    """Return the paths of all pages, relative to the root; decisions and the changelog are records."""
    found = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    return [*PAGES, *(page for page in found if not page.startswith("docs/decisions/"))]


def blocks_of(page):
    """Return the blocks of a page in order."""
    text, found = (ROOT / page).read_text(encoding="utf-8"), []
    for match in _BLOCK.finditer(text):
        kind = "indented" if match["indented"] else "fenced"
        block = match[kind].removesuffix("\n") if kind == "fenced" else re.sub(r"(?m)^ {4}", "", match[kind]).rstrip()
        found.append(Block(page, match["language"] or "", block, text.count("\n", 0, match.start(kind)) + 1))
    return found


def block_with(page, text):
    """Return the only block of a page that has a text."""
    (block,) = (candidate for candidate in blocks_of(page) if text in candidate.text)
    return block


def commands_of(text, program="tfx-embeddings"):
    """Return the command lines of a program in a block, without comments, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(rf"(?m)^\s*(?:\$ )?(?:\.venv/bin/)?{program} (.*)$", joined)
    return [re.sub(r"\s+#.*$", "", line).strip() for line in found]
