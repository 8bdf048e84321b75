"""Shows tokens and other text of the data to people: private tokens as digests, control characters escaped."""

from __future__ import annotations

import hashlib

_DIGITS = 12


def printable(text: str, *, keep: str = "") -> str:
    r"""Escape control, direction and unassigned characters, which a terminal would obey or hide: ESC becomes `\x1b`.

    Args:
      text: text to print.
      keep: characters to leave as they are, such as "\n".
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def shown_token(token: bytes, *, private: bool) -> str:
    """Show a token as text on one line, or as `sha256:` and the first 12 digits of its digest if it is private."""
    if private:
        return f"sha256:{hashlib.sha256(token).hexdigest()[:_DIGITS]}"
    return printable(token.decode("utf-8", errors="backslashreplace"))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
