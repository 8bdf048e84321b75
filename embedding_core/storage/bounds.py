"""Declares how much is read of files that others wrote. Every reader looks its bound up here and says it in its error.

All are bounds on bytes, rows and values, which bound memory and time too: no reader watches a clock. The numbers are
far above what good data has, and low enough that a laptop refuses bad data in seconds.

A run reads any number of rows. Only `CELL_CHARACTERS`, `ROW_BYTES`, `RECORD_BYTES`, `COLUMNS` and `BATCH_BYTES` concern
it; a check of the first rows also has `SAMPLE_ROWS` and `SAMPLE_BYTES`.
"""

CELL_CHARACTERS = 1 << 20
"""Characters of one value of CSV: 100,000 ids of 9. All rows within so many characters after a quote that is not closed
are lost, so that it is not larger."""

ROW_BYTES = 16 << 20
"""Bytes of one row of CSV, on however many lines: at least four values of the longest, as a character has up to 4."""

RECORD_BYTES = 64 << 20
"""Bytes of one TFRecord, and of the numbers of one tensor in it: a request of 4,096 rows of 4,096 numbers."""

COLUMNS = 16_384
"""Columns of a file: as many as a spreadsheet can have. Every batch has an array for each."""

GUESSED_COLUMNS = 4_096
"""Columns of which `init` makes features: a configuration of half a megabyte."""

BATCH_BYTES = 32 << 20
"""Bytes of the rows that are held together, but for the last row: as Python's texts, up to 30 times as much memory.
16,384 rows, which a batch otherwise has, reach it at 2 KB each."""

SAMPLE_ROWS = 10_000
"""Rows that a check reads of the data: enough for shares of a percent."""

SAMPLE_BYTES = 64 << 20
"""Bytes of text or records that a check reads of one file: 10,000 rows of 6.7 KB, read in a second."""

COUNTED_ROWS = 1_000_000
"""Rows of which `plan` counts the tokens before a run: half a minute of CSV."""

SETTINGS_BYTES = 1 << 20
"""Bytes of a YAML text: twice what `init` writes for `GUESSED_COLUMNS`."""

SETTINGS_VALUES = 100_000
"""Values of a YAML text after its aliases are expanded: a few lines of aliases to aliases can expand to billions."""

SETTINGS_LEVELS = 50
"""Levels of nesting of a YAML text: readers call themselves at every level."""

JSON_BYTES = 64 << 20
"""Bytes of a manifest, record or report: a list of 400,000 files."""
