"""`follow` pushes a delta for each span, goes on from it, and pushes a whole version when a delta is damaged."""

import pytest

from components.deltas.client import newest_chain
from pipelines.config import load_config
from support.two_days import CONFIG, chain_of, write_day
from tests.deltas.worlds import SECRET

pytestmark = pytest.mark.tfx

DELTAS = ("push.deltas.max_share=9", "push.deltas.full_every=9")


def followed(folder):
    """Follow until no span is left; return what each run pushed."""
    from pipelines.local.following import follow

    config = load_config(folder / "my.yaml", DELTAS)
    reports = [report for _, report in follow(config, until_idle=True)]
    for report in reports:
        is_delta = "-delta-" in report.push.version
        assert ("serve-delta" in report.query) == is_delta
        assert report.push.form == ("delta" if is_delta else "whole version")
        assert (report.push.full_push == "") == is_delta
    return [report.push.version for report in reports]


def test_each_span_is_pushed_as_a_delta(tmp_path, monkeypatch):
    monkeypatch.setenv("TFX_EMBEDDINGS_DELTA_SECRET", SECRET.decode())
    (tmp_path / "my.yaml").write_text(CONFIG)
    write_day(tmp_path, 2, range(30))
    (version,) = followed(tmp_path)
    write_day(tmp_path, 3, range(10, 40))
    assert followed(tmp_path) == [f"{version}-delta-1"]
    assert followed(tmp_path) == []
    assert chain_of(tmp_path)["spans"] == [[3], [2]]
    number, _, chain = newest_chain(str(tmp_path / "runs/my/serving"))
    assert (str(number), len(chain)) == (version, 1)
    assert sum(one["came"] for one in chain[0].facts["changes"].values()) > 0
    assert (tmp_path / "runs/my/reports" / f"{version}-delta-1" / "report.html").exists()

    (tmp_path / "runs/my/serving/deltas" / version / "1" / "delta.pb").write_bytes(b"damaged")
    write_day(tmp_path, 4, range(30, 60))
    (whole,) = followed(tmp_path)
    assert whole.isdigit()
    assert int(whole) > int(version)
    assert chain_of(tmp_path)["spans"] == [[4], [3], [2]]
