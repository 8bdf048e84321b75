"""Takes the pictures of docs/lineage.md from a lineage page: the drawing of the newest run, and the charts.

    tfx-embeddings lineage CONFIG --html PAGE && python docs/pictures.py PAGE

Addresses of artifacts, which the page shows under the mouse, are left out.
"""

from __future__ import annotations

import html
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

SVG = "http://www.w3.org/2000/svg"
FOLDER = Path(__file__).parent / "pictures"
_COLUMNS, _CAPTION = 2, 24  # charts beside each other; height of a caption


def drawing(page: str) -> str:
    """Return the drawing of the page's newest run as an SVG file."""
    found = re.search(r'<svg [^>]*aria-label="lineage">.*?</svg>', page, re.DOTALL)
    if found is None:
        raise SystemExit("the page has no drawing: give one that `tfx-embeddings lineage --html` wrote.")
    plain = re.sub(r"<title>.*?</title>|</?a\b[^>]*>", "", found[0])
    root = ET.fromstring(plain.replace("<svg ", f'<svg xmlns="{SVG}" ', 1))  # noqa: S314
    return _text_of(root, page)


def charts(page: str) -> str:
    """Return the charts of the page with their captions, two in a row, as an SVG file."""
    root = ET.Element(f"{{{SVG}}}svg")
    width = height = top = 0.0
    figures = re.findall(r"<figcaption>(.*?)</figcaption>(<svg.*?</svg>)", page, re.DOTALL)
    if not figures:
        raise SystemExit("the page has no charts: give the page of a model with a run before it.")
    for number, (title, svg) in enumerate(figures):
        chart = ET.fromstring(svg)  # noqa: S314
        wide, high = (float(chart.attrib[side].removesuffix("pt")) for side in ("width", "height"))
        top = top if number % _COLUMNS else height
        x, y = number % _COLUMNS * wide, top
        caption = ET.SubElement(root, f"{{{SVG}}}text", {"x": f"{x + 8:g}", "y": f"{y + 16:g}"})
        caption.text = html.unescape(title)
        caption.set("class", "kind")
        chart.attrib.update(x=f"{x:g}", y=f"{y + _CAPTION:g}", width=f"{wide:g}", height=f"{high:g}")
        root.append(chart)
        width, height = max(width, x + wide), max(height, y + high + _CAPTION)
    root.attrib.update(viewBox=f"0 0 {width:g} {height:g}", width=f"{width:g}", height=f"{height:g}")
    return _text_of(root, page)


def _text_of(root: ET.Element, page: str) -> str:
    """Return the SVG file, with the style sheet of the page."""
    style = ET.Element(f"{{{SVG}}}style")
    style.text = page.partition("<style>")[2].partition("</style>")[0]
    root.insert(0, style)
    root.attrib.update({"font-family": "sans-serif", "font-size": "13"})
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ET.tostring(root, encoding="unicode") + "\n"


def main(page: Path) -> None:
    """Write both pictures."""
    text = page.read_text(encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    for name, picture in (("lineage_run.svg", drawing(text)), ("lineage_charts.svg", charts(text))):
        (FOLDER / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
