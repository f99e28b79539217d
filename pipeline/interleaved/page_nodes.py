"""Reads the texts and images of a web page in their order, without menus, footers and dates.

The simplification of the page is that of OBELICS (Laurençon et al. 2023, appendix A.1): tags that only style text are
read through, other tags without running text are left out, and tags of blocks separate texts by a line or a paragraph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

from pydantic import Field

from pipeline.core.settings import Settings
from pipeline.core.url_hosts import request_key
from pipeline.sources.spdx_license_parser import stringify_license_field
from pipeline.sources.web_pages import parse_page

PAGE_END = "END_OF_DOCUMENT_TOKEN_TO_BE_REPLACED"
"""The paragraph that OBELICS writes where a page links to the rest of an article."""

# Read through: they style text, or choose between files of one image.
_STYLES = (
    "a abbr acronym b bdi bdo big cite code data dfn em font i ins kbd mark q s samp shadow small span strike strong "
    "sub sup time tt u var wbr figure picture source"
)
_TRANSPARENT = frozenset(_STYLES.split())
_PARAGRAPH, _LINE, _BLANK = "\n\n", "\n", " "
_STRENGTH = {"": 0, _BLANK: 1, _LINE: 2, _PARAGRAPH: 3}
_TAGS_BY_SEPARATOR = {
    _PARAGRAPH: "blockquote dl h1 h2 h3 h4 h5 h6 ol p ul",
    _LINE: "address article aside center dd div dt figcaption hgroup main marquee section summary",
    "": "blink body br caption h html legend title",
}
_SEPARATORS = {tag: separator for separator, tags in _TAGS_BY_SEPARATOR.items() for tag in tags.split()}
_MENUS = {"footer", "header", "navigation", "nav", "navbar", "menu"}  # id, class or title of a div
_REMOVED_CLASSES = {"footer", "site-info"}
_CONTINUED_CLASS = "more-link"
_IMAGE_SOURCES = (
    *("src", "data-src", "data-src-fg", "data-scroll-image", "srcset", "data-lateloadsrc", "data-img-src"),
    *("data-original", "data-gt-lazy-src", "data-lazy", "data-lazy-src", "src2"),
)
_WHITE_SPACE = re.compile(r"[ \t\n\r\f]+")


class PageImage(Settings):
    """An image of a page, as the page describes it."""

    url: str
    alt: str | None = None
    width: str | None = Field(default=None, description="as written: pixels, or a percentage of the file's")
    height: str | None = None
    license: str | None = Field(default=None, description="as written: a URL or a name")
    reservation: str | None = Field(default=None, description="how the page reserves it")


PageNodes = list[str | PageImage]


def dump_nodes(nodes: PageNodes) -> str:
    """Return nodes as JSON, which `load_nodes` reads."""
    return json.dumps(
        [node if isinstance(node, str) else node.model_dump(exclude_none=True) for node in nodes], ensure_ascii=False
    )


def load_nodes(written: str) -> PageNodes:
    return [node if isinstance(node, str) else PageImage.model_validate(node) for node in json.loads(written)]


class _NodeCollector:
    """Joins texts by the strongest separator between them; an image begins a new text."""

    def __init__(self) -> None:
        self.nodes: PageNodes = []
        self._pieces: list[str] = []
        self._separator = ""

    def separate(self, separator: str) -> None:
        self._separator = max(self._separator, separator, key=_STRENGTH.__getitem__)

    def break_line(self) -> None:
        """Two line breaks in a row separate paragraphs."""
        self._separator = _PARAGRAPH if _STRENGTH[self._separator] >= _STRENGTH[_LINE] else _LINE

    def add_text(self, written: str | None) -> None:
        text = _WHITE_SPACE.sub(_BLANK, written or "")
        if text.startswith(_BLANK):
            self.separate(_BLANK)
        if inner := text.strip():
            self._pieces += [self._separator if self._pieces else "", inner]
            self._separator = _BLANK if text.endswith(_BLANK) else ""

    def add_image(self, image: PageImage) -> None:
        self.end_text()
        self.nodes.append(image)

    def end_text(self) -> None:
        if self._pieces:
            self.nodes.append("".join(self._pieces))
        self._pieces, self._separator = [], ""


def read_page_nodes(page: str, url: str | None, reservation: str | None = None) -> PageNodes:
    """Return the texts and images of a page in their order.

    Args:
        page: HTML.
        url: of the page, to which addresses of images are relative; None leaves out images without a full address.
        reservation: how the page reserves its images.
    """
    tree = parse_page(page)
    if tree is None:
        return []
    base = next((one.get("href") for one in tree.iter("base") if one.get("href")), "")
    address = _join_url(url or "", base) or url or ""
    licenses = _image_licenses_of_structured_data(tree, address)
    collector = _NodeCollector()
    figures: list[int] = []  # where the nodes of each open figure begin
    figure_licenses: list[str | None] = []
    skipped: Any = None  # the outermost element that is left out and open
    for event, element in _walk(tree):
        if event == "start" and figures and (license := _read_license_link(element)):
            figure_licenses[-1] = _join_url(address, license)
        if skipped is not None:
            if event == "start" or element is not skipped:
                continue
            skipped = None
            _add_tail(collector, element)
            continue
        tag = element.tag
        if event == "start":
            if not isinstance(tag, str) or _is_left_out(element):  # the tag of a comment is no string
                skipped = element
                if isinstance(tag, str) and _CONTINUED_CLASS in _classes(element):
                    collector.separate(_PARAGRAPH)
                    collector.add_text(PAGE_END)
                    collector.separate(_PARAGRAPH)
            elif tag == "img":
                if image := _read_image(element, address, licenses, reservation):
                    collector.add_image(image)
            elif tag == "br":
                collector.break_line()
            else:
                if tag == "figure":
                    figures.append(len(collector.nodes))
                    figure_licenses.append(None)
                collector.separate(_SEPARATORS.get(tag, ""))
                if not _is_date(element):
                    collector.add_text(element.text)
            continue
        if tag == "figure" and figures:
            _set_license(collector.nodes, figures.pop(), figure_licenses.pop())
        collector.separate(_SEPARATORS.get(tag, ""))
        _add_tail(collector, element)
    collector.end_text()
    return collector.nodes


def _walk(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the start and the end of each element, in order; pages may be nested deeper than Python recurses."""
    stack = [(tree, iter(tree))]
    yield "start", tree
    while stack:
        element, children = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            yield "end", element
        else:
            yield "start", child
            stack.append((child, iter(child)))


def _add_tail(collector: _NodeCollector, element: Any) -> None:
    parent = element.getparent()
    if parent is not None and not _is_date(parent):
        collector.add_text(element.tail)


def _classes(element: Any) -> set[str]:
    return {*(element.get("class") or "").split()}


def _is_left_out(element: Any) -> bool:
    tag = element.tag
    if tag == "html":
        return False
    if tag not in _TRANSPARENT and tag not in _SEPARATORS and tag != "img":
        return True
    classes = _classes(element)
    if classes & _REMOVED_CLASSES or _CONTINUED_CLASS in classes:
        return True
    return tag == "div" and any(element.get(name) in _MENUS for name in ("id", "class", "title"))


def _read_license_link(element: Any) -> str | None:
    is_license = element.tag in ("a", "link") and "license" in (element.get("rel") or "").lower().split()
    return element.get("href") if is_license else None


def _is_date(element: Any) -> bool:
    return element.tag == "div" and "date" in (element.get("class") or "")


def _join_url(address: str, written: str | None) -> str | None:
    """Return an address in a page as a full one; None where it has none, or cannot be parsed."""
    try:
        return urljoin(address, (written or "").strip()).encode("utf-8", "replace").decode() or None
    except ValueError:  # such as an unclosed bracket of an IPv6 host
        return None


def _read_image(element: Any, address: str, licenses: dict[str, str], reservation: str | None) -> PageImage | None:
    written = (element.get(name) for name in _IMAGE_SOURCES)
    source = next((value for value in written if value and "," not in value and " " not in value.strip()), None)
    if source is None:
        return None
    url = _join_url(address, source)
    if (
        url is None
        or not re.match(r"https?://[^/?#]", url, re.IGNORECASE)
        or url.partition("#")[0] == address.partition("#")[0]
    ):
        return None  # an image of `#` is that of a script
    alt = " ".join((element.get("alt") or "").split())
    sizes = {name: (element.get(name) or "").strip() or None for name in ("width", "height")}
    return PageImage(url=url, alt=alt or None, **sizes, license=licenses.get(request_key(url)), reservation=reservation)


def _set_license(nodes: PageNodes, begin: int, license: str | None) -> None:
    if license:
        nodes[begin:] = [
            node if isinstance(node, str) or node.license else node.model_copy(update={"license": license})
            for node in nodes[begin:]
        ]


def _image_licenses_of_structured_data(tree: Any, address: str) -> dict[str, str]:
    """Return the license of each image that schema.org's ImageObject of the page states, by its `request_key`."""
    licenses: dict[str, str] = {}
    for script in tree.iter("script"):
        if (script.get("type") or "").partition(";")[0].strip().lower() != "application/ld+json":
            continue
        try:
            left = [json.loads(script.text or "")]
        except (ValueError, RecursionError):
            continue
        while left:
            value = left.pop()
            if isinstance(value, list):
                left += value
            elif isinstance(value, dict):
                left += value.values()
                license, kinds = stringify_license_field(value.get("license")), value.get("@type")
                names = [re.split("[/#:]", str(kind))[-1] for kind in (kinds if isinstance(kinds, list) else [kinds])]
                if license is None or "ImageObject" not in names:
                    continue
                for url in (value.get("contentUrl"), value.get("url")):
                    if isinstance(url, str) and (full := _join_url(address, url)):
                        licenses.setdefault(request_key(full), license)
    return licenses
