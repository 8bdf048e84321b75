"""Tests that control characters in the data are escaped before they reach the terminal."""

import io

import pytest
from rich.table import Table

from embedding_core.errors import ConfigError
from pipelines.console.terminal import PLAIN, SafeConsole, check_output, echo, print_table

pytestmark = pytest.mark.light

EVIL = "shop\x1b]0;owned\x07\x9b2J\r"
SHOWN = r"shop\x1b]0;owned\x07\x9b2J\r"


def printed(*content, **options):
    file = io.StringIO()
    SafeConsole(file=file, width=200).print(*content, **options)
    return file.getvalue()


def test_console_escapes_lines():
    assert printed(EVIL, **PLAIN) == SHOWN + "\n"


def test_console_escapes_cells_and_titles_of_tables():
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    text = printed(table)
    assert text.count(SHOWN) == 3
    assert not set("\x1b\x07\x9b\r") & set(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_table_has_all_columns_if_there_is_no_terminal(monkeypatch, terminal):
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    print_table(SafeConsole(file=file, force_terminal=terminal), "", [{"metric": "m" * 90, "bound": "at least 0.9"}])
    assert ("at least 0.9" in file.getvalue()) is not terminal


def test_output_needs_a_folder_that_can_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "page.html").touch()
    monkeypatch.setattr("os.access", lambda path, mode: path != str(tmp_path))
    with pytest.raises(ConfigError, match="Permission denied"):
        check_output("--html", tmp_path / "page.html")


def test_echo_escapes_all_but_line_breaks(capsys):
    echo(f"one\n{EVIL}")
    assert capsys.readouterr().out == f"one\n{SHOWN}\n"
