"""Tests the markup of the pages, and how Chromium shows them: windows of a phone and a desktop, dark, printed."""

import dataclasses
import html.parser
import itertools
import re
from pathlib import Path

import pytest

from pipelines import report as package
from pipelines.lineage.graph import read_records
from pipelines.report import html_report
from pipelines.report.charts import line_chart
from pipelines.report.html_report import comparison_html, save_report
from pipelines.report.lineage_page import collect_page, lineage_html
from tests.pipelines.report.test_html_report import changed
from tests.pipelines.report.test_lineage_page import Root, lineages_of, the
from tests.support.browser import CHROMIUM, NO_BROWSER, browser

pytestmark = pytest.mark.light
in_browser = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)

STYLE = Path(package.__file__).parents[1] / "templates" / "page.css"
NAMES = [f"dropoff_census_tract_{number}" for number in range(10)]
PAGES = ("pushed", "refused", "one_run", "two_runs", "compare")
WIDTHS = (400, 1400)


def reports():
    """Return a report of ten tables, which overfits, and one of a refused retrieval model."""
    table = {"values": {"zero": 0.1234, "norm_median": 1.25}, "curves": {"norms": [0.1, 0.5, 1.0]}}
    health = {"action": "warn", "tables": dict.fromkeys(NAMES, table), "findings": []}
    health["findings"] = [{"table": NAMES[0], "figure": "zero", "reason": f"12% of table {NAMES[0]!r} are zeros."}]
    loss = {"train": [(1, 0.7), (2, 0.5), (3, 0.4)], "eval": [(1, 0.6), (2, 0.5), (3, 0.6)]}
    query = f"model = tf.saved_model.load({'/a_long_path' * 9!r})"
    ranking = changed(curves={"loss": loss}, health=health, retrieval=None, query=query)
    return {"pushed": ranking, "refused": changed(push={"pushed": False, "reason": "Recall@10 is too low."}, query="")}


def lineages(folder):
    """Return the page of a first run, and that of a second one with ten columns."""
    root = Root(folder)
    root.add_run(1, ["Flash"], ["anna"], auc=0.7)
    root.add_run(2, ["Flash", "Taxi"], ["anna", "berta"], auc=0.75, start=1)
    graph = read_records(str(root.folder))
    pushes = {version: the(graph, "PushedModel", version) for version in (1, 2)}
    first, second = lineages_of(graph, pushes[2], pushes)
    page = collect_page(second, first, [first, second])
    figures = {
        "sizes": dict.fromkeys(NAMES, 1_234_567), "new": dict.fromkeys(NAMES, 12_345),
        "dropped": dict.fromkeys(NAMES, 2_345), "drift": dict.fromkeys(NAMES, 0.25), "kept": dict.fromkeys(NAMES, 0.75),
        "health": {name: {"norm_median": 1.5, "move_unseen": 0.1} for name in NAMES},
    }  # fmt: skip
    line = [dataclasses.replace(run, **figures) for run in page.line]
    return {"one_run": collect_page(first), "two_runs": dataclasses.replace(page, line=line)}


def comparison():
    """Return the page that compares two versions."""
    figures = [dataclasses.asdict(report) for report in reports().values()]
    row = {"metric": "a/Recall@10", "refused-20260102T030405": "0.085", "8": "0.091234", "change": "+0.006234"}
    metrics = [{**row, "": "better"}, {**row, "": "worse"}]
    settings = {"model.arguments.hidden_units": [[1024] * 30, None]}
    return comparison_html(figures, list(row)[1:3], metrics, settings, ["warning: the eval rows differ"])


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The files of all pages, by name; optional rooms, which load TFX, add nothing."""
    folder, files = tmp_path_factory.mktemp("pages"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html_report, "hooks", lambda *_: ())
        patch.setattr(html_report, "gates", lambda: ())
        for name, report in reports().items():
            files[name] = Path(save_report(report, str(folder / name)))
    texts = {name: lineage_html(page, name) for name, page in lineages(folder / "root").items()}
    for name, text in {**texts, "compare": comparison()}.items():
        files[name] = folder / f"{name}.html"
        files[name].write_text(text, encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


class Markup(html.parser.HTMLParser):
    """Tags with their attributes, in order; `headers` counts the header cells of each table."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.headers = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.headers.append(0)
        if tag == "th":
            self.headers[-1] += 1

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("name", PAGES)
def test_markup_says_what_each_part_is(pages, name):
    markup = Markup(pages[name].read_text(encoding="utf-8"))
    levels = [int(tag[1]) for tag, _ in markup.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert markup.of("html") == [{"lang": "en"}]
    assert len(markup.of("title")) >= 1
    assert all(markup.headers)
    assert all(svg["aria-label"] and svg["role"] for svg in markup.of("svg"))
    assert len(markup.of("figure")) == len(markup.of("figcaption"))
    assert all("tabindex" in area for area in markup.of("div") if area.get("class") == "wrap")
    ids = [attributes["id"] for _, attributes in markup.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def luminance(colour):
    """Return the relative luminance that WCAG 2 defines."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, other):
    low, high = sorted(map(luminance, (first, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(scheme):
    blocks = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6});", blocks[scheme]))
    assert len(blocks) == 2
    for ground in ("page", "card"):
        for ink in ("ink", "dim", "link", "good", "bad"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    assert all(contrast(colours[f"s{line}"], colours["page"]) >= 3 for line in range(1, 9))


def test_lines_of_ten_columns_look_different():
    svg = line_chart({name: [(1, 2.0), (2, 1.0)] for name in NAMES}, x_label="run")
    assert len(set(re.findall(r'"fill: none; (.*stroke: var\(--s.*)"', svg))) == len(NAMES)


@in_browser
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page_fits_the_window_and_says_no_error(pages, tab, name, width, dark):
    tab.open(pages[name], width=width, dark=dark)
    tab.keep_picture(f"{name}_{width}_{'dark' if dark else 'light'}")
    assert tab.value("document.documentElement.scrollWidth") <= width
    ground = tab.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(17, 22, 29)" if dark else "rgb(255, 255, 255)")
    assert tab.problems == []


@in_browser
@pytest.mark.parametrize("name", PAGES)
def test_ten_columns_need_no_scrolling_on_a_desktop(pages, tab, name):
    tab.open(pages[name], width=1400)
    tab.value("document.querySelectorAll('details').forEach(part => part.open = true)")
    wide = "[...document.querySelectorAll('.wrap')].filter(part => part.scrollWidth > part.clientWidth)"
    assert tab.value(f"{wide}.map(part => part.innerText.slice(0, 99))") == []


@in_browser
def test_charts_of_a_line_do_not_fill_the_page(pages, tab):
    tab.open(pages["two_runs"], width=1400)
    assert max(tab.value("[...document.querySelectorAll('figure')].map(chart => chart.clientWidth)")) <= 1400 / 3


@in_browser
@pytest.mark.parametrize("name", PAGES)
def test_print_shows_closed_parts_on_white(pages, tab, name, tmp_path):
    tab.open(pages[name], width=720, dark=True, media="print")
    tab.keep_picture(f"{name}_print")
    assert tab.value("document.documentElement.scrollWidth") <= 720
    closed = "[...document.querySelectorAll('details:not([open]) table')]"
    assert all(tab.value(f"{closed}.map(table => table.checkVisibility() && table.offsetHeight > 0)"))
    assert tab.value("getComputedStyle(document.body).color") == "rgb(28, 36, 48)"
    tab.save_pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_barrier(pages, tab, name, dark):
    tab.open(pages[name], width=400, dark=dark)
    assert tab.barriers() == []
