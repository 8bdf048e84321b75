"""The command `shadow`: its outcome, its page and its errors."""

import json
import sys

import pytest

from pipelines.commands import cli
from pipelines.commands.shared_options import FINDINGS
from tests.components.shadow.logs import predict_log
from tests.embedding_core.shadow.small_versions import floats, save_version
from tests.pipelines.commands.exit_code import exit_code
from tests.support.tf_examples import write_rows

pytestmark = pytest.mark.tfx

COUNTRIES = [b"<b>fr</b>", b"de"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two versions, whose signatures `priced` differ by 1, and a log."""
    made = tmp_path_factory.mktemp("shadow")
    save_version(made / "old")
    save_version(made / "new", added=1.0)
    priced = [predict_log("priced", price=floats(number, 2), country=COUNTRIES) for number in range(3)]
    write_rows(made / "log.gz", [predict_log(price=floats(1)), *priced], "GZIP")
    return made


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cli, "silence", lambda: None)


def arguments(folder, *more):
    return "shadow", folder / "old", folder / "new", folder / "log.gz", *more


def test_missed_bound_of_the_configuration_is_on_the_page(folder, tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("item,bought\na,1\n")
    text = "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item]}\n"
    (tmp_path / "my.yaml").write_text(text)
    given = arguments(folder, "--config", tmp_path / "my.yaml")
    assert exit_code(*given) == 1
    assert "has no section `shadow`" in capsys.readouterr().err
    section = f"shadow: {{requests: {folder / 'log.gz'}, outputs: {{score: {{max: 0.5}}}}}}\n"
    (tmp_path / "my.yaml").write_text(text + section)
    out = tmp_path / "out"
    assert exit_code(*given, "--set", "slices=[country]", "--public", "country", "--out", out) == FINDINGS
    shown = capsys.readouterr().out
    assert "4 requests; both versions answered 7 rows" in shown
    assert "MISSED: max difference of priced/score 1, at most 0.5" in shown
    assert "met: max difference of serving_default/score 0" in shown
    report = json.loads((out / "shadow.json").read_text())
    assert not report["passed"]
    assert {part["value"] for part in report["slices"]} == {"<b>fr</b>", "de", "(missing)"}
    page = (out / "shadow.html").read_text()
    assert "max difference of priced/score: 1, which must be at most 0.5" in page
    assert "&lt;b&gt;fr&lt;/b&gt;" in page
    assert "<b>fr</b>" not in page


def test_report_within_its_bounds_is_a_success(folder, capsys):
    assert exit_code(*arguments(folder, "--json", "--set", "outputs.score.max=1.5")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["requests"] == {"replayed": 4, "rows": 7, "other_models": {}, "not_replayed": {}}
    assert report["worst"]["priced/score"][0]["request"]["country"].startswith("sha256:")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("--set", "latency.p999=2"), "did you mean 'p99'"),
        (("--set", "outputs.score.max=-1"), "must be a number of at least 0"),
        (("--set", "outputs"), "it must be key=value"),
        (("--config", "{folder}/none.yaml"), "none.yaml"),
        (("--out", "{folder}/log.gz"), "cannot be made"),
    ],
)
def test_wrong_option_is_an_error_before_anything_runs(folder, capsys, changed, words):
    given = [argument.format(folder=folder) for argument in changed]
    assert exit_code(*arguments(folder, *given)) == 1
    assert words in capsys.readouterr().err


def test_wrong_version_or_log_is_an_error_before_anything_runs(folder, capsys):
    assert exit_code("shadow", folder, folder / "new", folder / "log.gz") == 1
    assert "has no 'saved_model.pb': give the folder of one version" in capsys.readouterr().err
    assert exit_code("shadow", folder / "old", folder / "new", folder / "none") == 1
    assert "': give a request log" in capsys.readouterr().err
