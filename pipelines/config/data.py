"""Defines the section `data`: the files of the rows, and their format."""

from __future__ import annotations

from typing import Literal

from components.example_gen.csv_format import CsvFormat
from components.example_gen.formats import DataFormat
from components.example_gen.history_section import Histories
from components.example_gen.settings import Rate
from components.example_gen.spans import Spans, is_dated
from embedding_core.schema import Listed, Mistakes, Positive, Text


class Data(CsvFormat):
    """Files that the rows are read from, and how CSV files are written (the keys of `CsvFormat`).

    Attributes:
      path: a file, a folder, or a glob (an existing path of exactly that name is literal);
        `package:<package>/<path>` for a file inside an installed package;
        {YYYY}, {MM}, {DD} and {SPAN} in it are placeholders for the parts of a span.
      format: "csv", "tfrecord" (of tf.Example) or "parquet"; null infers it from the extension.
      spans: spans to read, if the path has placeholders; null reads all.
      allowed_bad_rate: largest share of rows that may be malformed, without a label, or with several values in a
        single-valued column; such rows are set aside and counted.
      whole_numbers: columns of tokens in which 3.0 is read as 3 (pandas writes 3 as 3.0 if a column has missing
        values); in other columns 3 and 3.0 are two tokens, and the report counts a mix of them.
      empty_columns: what to do with a column that no row of the train split has a value of: "error" refuses the data;
        "allow" trains on it, as small spans need, if `vocabulary_evolution` has a vocabulary of the column's tokens.
      histories: new columns with what the row's user did before; null makes none.
      statistics: "sample" takes histograms, quantiles and frequent values of the columns from a sample, at least
        10,000 rows of each split; counts, missing values and ranges are exact. "exact" takes them from all rows, with
        TFX's StatisticsGen.
      workers: number of processes that read the data of a run on this machine. Each process loads TensorFlow, so more
        than one pays off only for large data. On a cluster, `beam` or
        `kubeflow.beam_args` applies.
    """

    SHORT = "path"

    path: Text
    format: DataFormat | None = None
    spans: Spans | None = None
    allowed_bad_rate: Rate = 0.0
    whole_numbers: Listed[Text] = ()
    empty_columns: Literal["error", "allow"] = "error"
    histories: Histories | None = None
    statistics: Literal["sample", "exact"] = "sample"
    workers: Positive = 1

    @property
    def by_date(self) -> bool:
        """Whether the path's spans are dates."""
        return is_dated(self.path)

    @property
    def has_spans(self) -> bool:
        """Whether the path has placeholders for spans."""
        return any(part in self.path for part in ("{YYYY}", "{MM}", "{DD}", "{SPAN}"))

    def mistakes(self) -> Mistakes:
        """Yield the mistakes that involve several fields."""
        yield from super().mistakes()
        if self.format not in ("csv", None) and self.changed:
            yield self.changed[0], f"is given, and `data.format` is {self.format!r}: it is for CSV files; leave it out."
        if self.has_spans and not self.by_date and "{SPAN}" not in self.path:
            yield "path", f"is {self.path!r}: a date needs all of {{YYYY}}, {{MM}} and {{DD}}; or use {{SPAN}}."
        if self.by_date and "{SPAN}" in self.path:
            yield "path", f"is {self.path!r}: spans are dates or numbers; use {{YYYY}}-{{MM}}-{{DD}} or {{SPAN}} alone."
        if self.spans is None:
            return
        if not self.has_spans:
            yield (
                "spans",
                f"is given, but `path` {self.path!r} has no {{YYYY}}-{{MM}}-{{DD}} or {{SPAN}}; put it there.",
            )
            return
        yield from ((f"spans.{key}", text) for key, text in self.spans.bound_mistakes(self.path))
