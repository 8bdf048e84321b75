import pytest

from pipelines.pipeline.fingerprint import digest_of_files

pytestmark = pytest.mark.light


def test_digest_follows_the_contents_and_not_the_place(tmp_path):
    places = [tmp_path / name / "model.py" for name in ("a", "b")]
    for place in places:
        place.parent.mkdir()
        place.write_text("x = 1\n")
    assert digest_of_files([str(places[0])]) == digest_of_files([str(places[1])])
    places[1].write_text("x = 2\n")
    assert digest_of_files([str(places[0])]) != digest_of_files([str(places[1])])
