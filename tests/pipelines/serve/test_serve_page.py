"""Tests the page of `serve`: a request, the neighbours of a token, the rows of a table; escaped, private as digests."""

import html
import json
import re
import types

import pytest

from embedding_core.display import shown_token
from embedding_core.errors import ConfigError
from pipelines.serve.http_server import _value, page_html
from pipelines.serve.rest_form import predict
from tests.pipelines.serve.small_model import PRIVATE, PUBLIC
from tests.support.browser import CHROMIUM, NO_BROWSER, browser

DIGEST = shown_token(PRIVATE, private=True)


@pytest.fixture
def show(version, tables):
    """Return a function that renders the page for the fields of a request, with facts of the version."""

    def shown(fields=(), **facts):
        served = {**vars(version), "call": version.call, "facts": {**version.facts, **facts}, "tables": tables}
        return page_html(types.SimpleNamespace(**served), "<m>", dict(fields))

    return shown


def cells(page):
    """Return the texts of the table's rows below its heading, by column, without the vector."""
    rows = re.findall(r"<tr>(<td.*?)</tr>", page)
    return [[re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?>(.*?)</td>", row)][:-1] for row in rows]


def request_of(page):
    return json.loads(html.unescape(re.search(r"(?s)<textarea.*?>(.*)</textarea>", page)[1]))


def test_page_says_what_it_is_and_offers_a_request_that_works(show, version):
    page = show()
    assert "<h1>&lt;m&gt;, version 7</h1>" in page
    assert "not a server for production" in page
    assert "<code>raw</code>: item: string of the shape [n, n]; number: int64 of the shape [n]" in page
    request = request_of(page)
    assert request == {
        "signature_name": "raw", "instances": [{"item": [PUBLIC.decode()], "number": 1, "price": 1.0}],
    }  # fmt: skip
    assert predict(version, request)["predictions"][0]["next"] == 2


@pytest.mark.parametrize(("token", "value"), [("12", 12), ("i12", 1), (str(2**70), 1), (None, 1)])
def test_number_is_made_of_a_token_that_is_one(version, token, value):
    assert _value(version.inputs["raw"]["number"], token) == value


def test_request_is_answered_and_its_text_is_escaped(show):
    row = {"item": ["</textarea><script>"], "number": 1, "price": 0.1}
    request = json.dumps({"signature_name": "raw", "instances": [row]})
    page = show({"request": request}, public={"columns": ["item"], "answers": True})
    assert request_of(page)["instances"] == [row]
    assert "<script>" not in page
    assert "&#34;item&#34;: &#34;&lt;/textarea&gt;&lt;script&gt;&#34;" in page
    assert "&#34;model_version&#34;: &#34;7&#34;" in page


def test_tokens_of_answers_are_digests_if_anything_is_private(show):
    request = json.dumps({"signature_name": "raw", "inputs": {"item": [["anna"]], "number": [1], "price": [1]}})
    answer = re.search(r"(?s)<pre.*?>(.*)</pre>", show({"request": request}))[1]
    assert f"&#34;{DIGEST}&#34;" in answer
    assert "anna" not in answer
    assert "&#34;model_version&#34;: &#34;7&#34;" in answer


def test_rows_of_a_table_are_listed_in_parts(show):
    page = show({"table": "item"})
    assert "<b>item</b>" not in page
    tokens = ["&lt;b&gt;item&lt;/b&gt;", "i1", r"\xff", "i3", "out of vocabulary 0"]
    assert cells(page) == [[str(row), token, str(4 - row) if row < 4 else ""] for row, token in enumerate(tokens)]
    first = show({"table": "raw", "token": ""})  # as the form is sent without a token
    assert [row[1] for row in cells(first)] == [f"id {number}" for number in range(20)]
    assert '<a href="/?table=raw&amp;start=20#rows">next rows</a>' in first
    last = show({"table": "raw", "start": "20"})
    assert [row[0] for row in cells(last)] == [str(number) for number in range(20, 30)]
    assert "next rows" not in last


def test_neighbours_are_the_most_similar_tokens_the_best_first(show):
    page = show({"table": "item", "token": PUBLIC.decode()})
    assert [(row[0], row[3]) for row in cells(page)] == [("0", ""), ("2", "0.9988"), ("1", "0.0000")]
    assert 'value="&lt;b&gt;item&lt;/b&gt;"' in page
    assert cells(show({"table": "item", "row": "0"})) == cells(page)
    near = [row[0] for row in cells(show({"table": "raw", "token": "29"}))]
    assert near == [str(number) for number in range(29, 18, -1)]


def test_row_of_zeros_has_no_neighbours(show):
    page = show({"table": "item", "token": "i3"})
    assert [row[0] for row in cells(page)] == ["3"]
    assert "the cosine is not defined for rows that are zeros" in page


def test_private_token_is_found_by_its_text_and_shown_as_digest(show):
    page = show({"table": "user", "token": "anna"})
    assert "anna" not in page
    assert [row[1] for row in cells(page)] == [DIGEST, shown_token(b"bert", private=True)]
    unknown = show({"table": "user", "token": "carl"})
    assert shown_token(b"carl", private=True) in unknown
    assert "carl" not in unknown


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"table": "itm"}, "unknown table 'itm': did you mean 'item'?"),
        ({"table": "item", "token": "<i>"}, "table 'item' has no row for '<i>': it is looked up as an unknown token."),
        ({"table": "raw", "token": "30"}, "'30' is not a row of 'raw': it has 0 to 29."),
        ({"table": "item", "row": "-1"}, "'-1' is not a row of 'item': it has 0 to 4."),
        ({"table": "item", "start": "5"}, "'5' is not a row of 'item': it has 0 to 4."),
    ],
)
def test_mistake_is_a_sentence_on_the_page(show, query, words):
    page = show(query)
    assert html.unescape(re.search(r'role="alert">(.*)</p>', page)[1]) == words
    assert "<i>" not in page


def test_wrong_request_is_a_sentence_on_the_page(show):
    page = show({"request": "{"})
    assert "the request is not JSON" in re.search(r'role="alert">(.*)</p>', page)[1]
    assert "<pre" not in page


def test_page_works_without_the_tables(version):
    class Gone:
        number, facts, inputs, call = version.number, version.facts, version.inputs, version.call

        @property
        def tables(self):
            raise ConfigError("the checkpoint is gone")

    page = page_html(Gone(), "m", {"table": "item", "request": '{"inputs": ["abc"]}'})
    assert "the checkpoint is gone" in page
    assert "1.0" in page


SHOWN = {
    "start": {}, "answer": {"request": '{"inputs": ["abc"]}'}, "rows": {"table": "item"},
    "neighbours": {"table": "raw", "row": "3"}, "mistake": {"table": "itm"},
}  # fmt: skip


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", SHOWN)
def test_page_fits_the_window_and_axe_finds_no_barrier(show, tab, tmp_path, name, width, dark):
    path = tmp_path / "page.html"
    path.write_text(show(SHOWN[name]), encoding="utf-8")
    tab.open(path, width=width, dark=dark)
    tab.keep_picture(f"serve_{name}_{width}_{'dark' if dark else 'light'}")
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert (tab.problems, tab.barriers()) == ([], [])
