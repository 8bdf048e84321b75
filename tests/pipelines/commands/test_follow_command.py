"""Tests how `follow` starts: it waits for the first file, and only for that."""

import pytest

from pipelines.commands import run_command
from tests.pipelines.commands.exit_code import exit_code
from tests.support.two_days import CONFIG, write_day


@pytest.fixture
def path(tmp_path):
    (tmp_path / "my.yaml").write_text(CONFIG)
    return tmp_path / "my.yaml"


def test_the_first_file_is_waited_for(path, monkeypatch):
    said = []

    def waits(text, *, err):
        said.append((text, err))
        write_day(path.parent, 7, range(9))

    monkeypatch.setattr(run_command, "echo", waits)
    assert run_command._wait_for_data(path, ["follow.poll_seconds=0.1"], until_idle=False)
    assert said == [(f"waiting for the first file of '{path.parent}/days/{{SPAN}}/rows.csv'", True)]


def test_until_idle_ends_if_no_file_has_arrived(path, capsys):
    assert exit_code("follow", path, "--until-idle") == 0
    assert "no file of '" in capsys.readouterr().err
    assert not (path.parent / "runs").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.path=days/rows.csv", "no file has this name"),
        ("data.path=days/**/{SPAN}/rows.csv", "use * for each folder"),
        ("warm_start=null", "set `warm_start: pushed`"),
        ("training.epochs=-1", "`training.epochs` is -1"),
    ],
)
def test_a_mistake_is_an_error_before_a_file_has_arrived(path, override, message, capsys):
    assert exit_code("follow", path, "--set", override) == 1
    assert message in capsys.readouterr().err
