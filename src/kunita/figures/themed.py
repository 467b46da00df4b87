"""Figures for a page that may be light or dark: drawn once, in colours that the page's style sheet
decides.
"""

import hashlib
import io
import re
import unicodedata
import warnings
from collections.abc import Iterator
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.figure import Figure

INK, FAINT = "#010a01", "#020b02"
"""Text and marks; spines, grids and what stays in the background."""

ACCENT, SECOND, THIRD, WARN = "#030c03", "#040d04", "#050e05", "#060f06"
"""Series, and what deserves a second look. No figure has these colours by chance, and nobody ever
sees them."""

VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    ACCENT: "var(--series-1)",
    SECOND: "var(--series-2)",
    THIRD: "var(--series-3)",
    WARN: "var(--warn)",
}
"""What the page's style sheet has to say."""

SVG = "http://www.w3.org/2000/svg"
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FONT = re.compile(r"font: (?:(?:\w+ )*?)([\d.]+px) [^;]*|font-family:[^;]*;? ?")
REFERENCE = re.compile(r"url\(#([^)]*)\)")

themed = matplotlib.rc_context(
    {
        "font.size": 8.5,
        "axes.titlesize": 9,
        "axes.labelsize": 8.5,
        "legend.fontsize": 8,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "lines.linewidth": 1.5,
        "lines.markersize": 4.5,
        "axes.linewidth": 0.7,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "hatch.color": FAINT,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": FAINT,
        "grid.alpha": 0.3,
        "grid.linewidth": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.borderaxespad": 0.0,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "hatch.linewidth": 0.6,
        "text.parse_math": False,
        "text.usetex": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "kunita",
        "svg.image_inline": True,
    }
)
"""Decorator of a function that draws for the page: colours that `svg` knows, and names with a $ in
them as they are."""


@themed
def svg(figure: Figure, alt: str) -> str:
    """A figure as an `<svg>` element for a page: its colours are variables of the page, its font is
    the page's.

    It is as wide as the page wants, tells nobody when or by what it was made, and refers to nothing
    outside; what it refers to inside no other figure on the page has. The same figure is the same
    text.

    Args:
        figure: drawn with the colours above.
        alt: what it shows, for those who cannot see it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font", UserWarning
        )  # the page's fonts have more
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    drawn, alt = printable(content.getvalue()), printable(alt)
    root = ElementTree.fromstring(drawn)
    own = hashlib.sha256(f"{drawn} {alt}".encode()).hexdigest()[:8]
    for parent in list(root.iter()):
        for child in [child for child in parent if _local(child.tag) in ("metadata", "style")]:
            parent.remove(child)
    referred = {name for element in root.iter() for name in _references(element)}
    for element in root.iter():
        _tidy(element, own, referred)
    _entitle(root, alt)
    return ElementTree.tostring(root, encoding="unicode")


def printable(text: str) -> str:
    """A text without what no page can hold: control characters, and halves of others, which
    matplotlib refuses.
    """
    return NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def text_width(text: str) -> float:
    """About how wide a text is in a wide font, as a multiple of its size; the page decides which
    font it is.
    """
    full = sum(
        unicodedata.east_asian_width(letter) in "WF" or letter in "mMW@%…" for letter in text
    )
    large = sum(letter.isupper() or letter == "w" for letter in text)
    return 0.64 * len(text) + 0.36 * full + 0.14 * large


def shortened(name: str, widest: float) -> str:
    """On one line, with an ellipsis for what is too long."""
    name = printable(" ".join(name.split()))
    if text_width(name) <= widest:
        return name
    return (
        name[: int(np.searchsorted(np.cumsum([text_width(letter) for letter in name]), widest - 1))]
        + "…"
    )


def _local(name: str) -> str:
    """A tag or attribute without its namespace."""
    return name.rpartition("}")[2]


def _references(element: ElementTree.Element) -> Iterator[str]:
    """The ids that an element refers to."""
    for value in element.attrib.values():
        yield from REFERENCE.findall(value)
        if value.startswith("#"):
            yield value[1:]


def _tidy(element: ElementTree.Element, own: str, referred: set[str]) -> None:
    """Colours of the page, ids of this figure alone, no namespaces, and no white space between
    elements.
    """
    element.tag = _local(element.tag)
    found = {_local(name): value for name, value in element.attrib.items()}
    element.attrib.clear()
    for name, value in found.items():
        if name == "id" and value not in referred:
            continue
        if name == "id" or (name == "href" and value.startswith("#")):
            value = f"k{own}-{value}" if name == "id" else f"#k{own}-{value[1:]}"
        elif name == "style":
            value = _coloured(without_family(value))
        elif name == "d":
            value = " ".join(value.split())
        element.set(name, REFERENCE.sub(rf"url(#k{own}-\1)", value))
    element.tail = None
    if element.tag != "text" and not (element.text or "").strip():
        element.text = None


def without_family(style: str) -> str:
    """A style whose text has the font of what is around it; the size may come alone or, of old,
    with the family.
    """
    return FONT.sub(lambda found: f"font-size: {found[1]}" if found[1] else "", style)


def _coloured(style: str) -> str:
    for colour, variable in VARIABLES.items():
        style = style.replace(colour, variable)
    return style


def _entitle(root: ElementTree.Element, alt: str) -> None:
    """The root's attributes: its proportions without a size, and what the figure shows."""
    proportions = root.get("viewBox", "")
    root.attrib.clear()
    strokes = (
        "stroke-linejoin: round; stroke-linecap: butt"  # matplotlib asks it of *: of all the page
    )
    named = {
        "xmlns": SVG,
        "viewBox": proportions,
        "role": "img",
        "aria-label": alt,
        "style": strokes,
    }
    for name, value in named.items():
        root.set(name, value)
    title = ElementTree.Element("title")
    title.text = alt
    root.insert(0, title)
