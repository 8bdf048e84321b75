import pytest

from embedding_core.errors import DataError
from pipelines.choices.kept import KeptResults

pytestmark = pytest.mark.light


def test_results_are_read_back(tmp_path):
    path = str(tmp_path / "results.json")
    KeptResults(path).keep("a", {"auc": 0.9})
    again = KeptResults(path)
    again.keep("b", {"auc": 0.8})
    assert (KeptResults(path).get("a"), KeptResults(path).get("b")) == ({"auc": 0.9}, {"auc": 0.8})
    assert again.get("c") is None


def test_damaged_file_is_named(tmp_path):
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(DataError, match=r"results.json.*delete it"):
        KeptResults(str(tmp_path / "results.json"))
