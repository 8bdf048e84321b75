"""Declares how CSV files are written, for the YAML file and for ExampleGen."""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from typing import Literal

from components.example_gen.formats import Compression
from embedding_core.schema import Listed, Mistakes, Section
from embedding_core.storage import bounds

COMMON_DELIMITERS = (";", "\t", "|", "::", ",")
_LINE_ENDS = "\n\r\0"


class CsvFormat(Section):
    """How CSV files are written.

    Attributes:
      missing: texts that mean a missing value, such as "?" and "NA", in addition to the empty text.
      delimiter: text between two fields, of one character or more (`::`).
      decimal: decimal separator, "." or ",".
      quote: character around a field that holds delimiters or line breaks; "" if quotes are ordinary characters.
      encoding: character encoding as Python names it, such as latin-1 or cp1252.
      compression: "gz", "bz2", "zst", "xz" or "none"; null recognizes each file by its first bytes.
      columns: names of all columns, in order, of files without a header; null reads the names from the first line.
    """

    missing: Listed[str] = ()
    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    quote: str = '"'
    encoding: str = "utf-8"
    compression: Compression | None = None
    columns: Listed[str] | None = None

    def mistakes(self) -> Mistakes:
        """Yield the rules that the fields break, as pairs of the key and the message that follows it."""
        if not self.delimiter or any(sign in self.delimiter for sign in _LINE_ENDS):
            yield "delimiter", f"is {self.delimiter!r}: it must be the text between two fields, and not a line break."
        elif self.delimiter == r"\t":
            yield "delimiter", r'is a backslash and a "t": for a tab write it in double quotes, delimiter: "\t".'
        if len(self.quote) > 1 or (self.quote and self.quote in _LINE_ENDS):
            yield "quote", f'is {self.quote!r}: it must be one character, or "" if quotes are ordinary characters.'
        if self.quote and self.quote in self.delimiter:
            yield "quote", f"is {self.quote!r}: it must not be in `delimiter`, {self.delimiter!r}."
        if self.decimal == self.delimiter:
            yield "decimal", f'is {self.decimal!r}, as `delimiter` is: give the delimiter, such as `delimiter: ";"`.'
        if not _is_text_encoding(self.encoding):
            yield (
                "encoding",
                f"is {self.encoding!r}: not an encoding that Python knows; write one such as utf-8, latin-1 or cp1252.",
            )
        yield from self._column_mistakes()

    def _column_mistakes(self) -> Mistakes:
        if self.columns is None:
            return
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if not self.columns or "" in self.columns:
            yield "columns", f"is {list(self.columns)!r}: name every column of the files, in order."
        elif twice:
            yield "columns", f"is {list(self.columns)!r}: {twice[0]!r} occurs twice; names must be unique."

    @property
    def changed(self) -> tuple[str, ...]:
        """The keys that differ from their defaults."""
        return tuple(name for name, field in CsvFormat.model_fields.items() if getattr(self, name) != field.default)

    @property
    def codec(self) -> str:
        """The codec to read with; for UTF-8, it skips a byte order mark."""
        return "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding


def allow_long_values() -> None:
    """Let Python's csv module read values of up to `bounds.CELL_CHARACTERS`, and not only of 131,072.

    The limit is one of the whole process, and so is only raised: a larger one is meant for another reader.
    """
    csv.field_size_limit(max(bounds.CELL_CHARACTERS, csv.field_size_limit()))


def _is_text_encoding(name: str) -> bool:
    try:
        "a".encode(name)
    except (LookupError, ValueError, TypeError):  # LookupError also for codecs that do not encode text, such as base64
        return False
    return True
