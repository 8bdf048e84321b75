"""A configuration of two columns, for commands that load neither TensorFlow nor TFX."""

import sys

import pytest

from pipelines.commands import cli

TEXT = (
    "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item]}\nevaluation: {min_rows: 1, min_rows_per_class: 1}\n"
)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cli, "silence", lambda: None)
    (tmp_path / "rows.csv").write_text("item,bought\n" + "".join(f"{row},{row % 2}\n" for row in range(40)))
    (tmp_path / "my.yaml").write_text(TEXT)
    return tmp_path / "my.yaml"
