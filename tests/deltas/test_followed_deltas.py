"""`follow` pushes a delta for each span, goes on from it, and pushes a whole version when a delta is damaged."""

import pytest

from components.deltas.client import newest_chain
from tests.support.trained_world import DELTA_SECRET
from tests.support.two_days import chain_of, write_day

pytestmark = pytest.mark.tfx

DELTAS = ("push.deltas.max_share=9", "push.deltas.full_every=9")


def followed(pipeline):
    """Follow until no span is left; return what each run pushed."""
    from pipelines.local.following import follow

    reports = [report for _, report in follow(pipeline.config(*DELTAS), until_idle=True)]
    for report in reports:
        is_delta = "-delta-" in report.push.version
        assert ("serve-delta" in report.query) == is_delta
        assert report.push.form == ("delta" if is_delta else "whole version")
        assert (report.push.full_push == "") == is_delta
    return [report.push.version for report in reports]


@pytest.fixture(scope="module")
def day_after(ranking_days, tmp_path_factory):
    """The ranking model of the trained world, whose second version takes deltas, and what its third day pushed."""
    pipeline = ranking_days.copy(tmp_path_factory.mktemp("followed") / "copy")
    write_day(pipeline.folder, 3, range(20, 50), priced=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFX_EMBEDDINGS_DELTA_SECRET", DELTA_SECRET)
        yield pipeline, followed(pipeline)


def test_span_is_pushed_as_a_delta(day_after):
    pipeline, pushed = day_after
    version = pipeline.reports[1].push.version
    assert pushed == [f"{version}-delta-1"]
    assert followed(pipeline) == []
    assert chain_of(pipeline.folder)["spans"] == [[3], [2], [1]]
    number, _, chain = newest_chain(str(pipeline.work_dir / "serving"))
    assert (str(number), len(chain)) == (version, 1)
    assert sum(change["came"] for change in chain[0].facts["changes"].values()) > 0
    assert (pipeline.work_dir / "reports" / f"{version}-delta-1" / "report.html").exists()


@pytest.mark.slow
def test_whole_version_is_pushed_after_a_damaged_delta(day_after):
    pipeline, _ = day_after
    version = pipeline.reports[1].push.version
    (pipeline.work_dir / "serving/deltas" / version / "1" / "delta.pb").write_bytes(b"damaged")
    write_day(pipeline.folder, 4, range(30, 60), priced=True)
    (whole,) = followed(pipeline)
    assert whole.isdigit()
    assert int(whole) > int(version)
    assert chain_of(pipeline.folder)["spans"] == [[4], [3], [2], [1]]
