import pytest

from embedding_core.errors import DataError
from pipelines.choices.kept import KeptResults

pytestmark = pytest.mark.light

TYPES = {"auc": (float, type(None))}


def test_results_are_read_back(tmp_path):
    path = str(tmp_path / "results.json")
    KeptResults(path, TYPES).keep("a", {"auc": 0.9})
    again = KeptResults(path, TYPES)
    again.keep("b", {"auc": None})
    assert (KeptResults(path, TYPES).get("a"), KeptResults(path, TYPES).get("b")) == ({"auc": 0.9}, {"auc": None})
    assert again.get("c") is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", "\xff", '{"a": 1}', '{"a": {}}', '{"a": {"auc": "1"}}', '{"a": {"auc": 1.0, "more": 1}}'],
)
def test_damaged_file_is_named(tmp_path, text):
    (tmp_path / "results.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"results.json.*delete"):
        KeptResults(str(tmp_path / "results.json"), TYPES)
