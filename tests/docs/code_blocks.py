"""Finds the code blocks of the pages: those between fences, and those that are indented by four spaces."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "examples/README.md", "kubeflow/README.md")


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
    found, language, start, lines, blank = [], None, 0, [], True
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"\s*```(\S*)", line)
        if language is None and not fence and lines and line.strip() and not line.startswith("    "):
            found.append(Block(page, "", "\n".join(lines).rstrip(), start))
            lines = []
        if fence:
            if language is None:
                if lines:
                    found.append(Block(page, "", "\n".join(lines).rstrip(), start))
                language, start, lines = fence[1], number + 1, []
            else:
                found.append(Block(page, language, "\n".join(lines), start))
                language, lines = None, []
        elif language is not None:
            lines.append(line)
        elif line.startswith("    ") and (lines or blank):
            start = start if lines else number
            lines.append(line[4:])
        elif lines and not line.strip():
            lines.append("")
        blank = not line.strip()
    return [*found, Block(page, "", "\n".join(lines).rstrip(), start)] if lines else found


def block_with(page, text):
    """Return the only block of a page that has a text."""
    (block,) = (one for one in blocks_of(page) if text in one.text)
    return block


def commands_of(text, program="tfx-embeddings"):
    """Return the command lines of a program in a block, without comments, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(rf"(?m)^\s*(?:\$ )?(?:\.venv/bin/)?{program} (.*)$", joined)
    return [re.sub(r"\s+#.*$", "", one).strip() for one in found]
