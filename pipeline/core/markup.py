"""Shared parts of pages and cards: number formats, escaping of data, and the style sheet."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import unicodedata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from pipeline.core.display_text import NOT_ASCII, escape_invisible

NOT_STATED = "not stated"
STYLE_SHEET = "markup.css"
_HTTP = re.compile(r"https?://[^\s<>\"'`|\\\[\]()]+", re.ASCII)
# Explicit directions: left open, or closed once too often, they turn what follows a passage.
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_MARKDOWN = re.compile(r"[\\`*_\[\]{}|~$#]")


def format_number(value: float | None, digits: int = 4) -> str:
    """Return an integer with thousands separators, or a float rounded to `digits` significant digits."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -4 <= magnitude < 15:
        return f"{value:,.{max(digits - 1 - magnitude, 0)}f}"
    return f"{value:.{digits - 1}e}"


def use_minus_sign(number: str) -> str:
    """Return a formatted number with U+2212 in place of a leading hyphen, for readers and not for programs."""
    return number.replace("-", "\N{MINUS SIGN}", 1) if number.startswith("-") else number


def format_percent(part: float, whole: float) -> str:
    """Return a share in percent with two decimals, or a dash if the whole is 0."""
    return f"{100 * part / whole:.2f} %" if whole else "–"


def format_bytes(value: float | None) -> str:
    """Return a number of bytes in decimal units with three significant digits."""
    if value is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000:
            return f"{int(value)} B" if unit == "B" else f"{format_number(float(value), 3)} {unit}"
        value = value / 1000
    return f"{format_number(float(value), 3)} PB"


def safe_url(text: object) -> str | None:
    """Return a text if it is a plain http(s) URL, else None."""
    return text if isinstance(text, str) and _HTTP.fullmatch(text) else None


def escape_markdown(value: object) -> object:
    """Escape text from data for Markdown: no markup, no HTML, no new line or cell."""
    if isinstance(value, Markup | int | float):
        return value
    text = re.sub(r"\s+", " ", str(value)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\g<0>", text)


def escape_text_for_html(text: str, isolated: bool = True) -> Markup:
    """Return running text from data for HTML, with its own text direction by default.

    Characters that scripts need and nobody sees, such as U+200C and U+200F, stay; explicit directions are shown.
    """

    def escape_format_character(match: re.Match[str]) -> str:
        character = match[0]
        is_needed = unicodedata.category(character) == "Cf" and character not in _DIRECTIONS
        return f"&#x{ord(character):X};" if is_needed else character

    shown = NOT_ASCII.sub(escape_format_character, str(escape(text)))
    return Markup(f"<bdi>{shown}</bdi>" if isolated else shown)


def html_element(name: str, *content: str, **attributes: object) -> Markup:
    """Return an HTML or SVG element with escaped content and attributes; without content it is self-closing.

    An attribute is named as in Python: `class_`, `text_anchor`.
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    inner = Markup("").join(content)
    return Markup(f"<{name}{written}>{inner}</{name}>" if content else f"<{name}{written}/>")


def markdown_link(value: object) -> object:
    """Return an http(s) URL as a Markdown link, other text unchanged, and a missing value as "not stated"."""
    url = safe_url(value)
    return Markup(f"<{url}>") if url else value or NOT_STATED


def read_style_sheet(own: Path) -> Markup:
    """Return the shared style sheet followed by the one of a page."""
    shared = Path(__file__).parent / STYLE_SHEET
    return Markup(shared.read_text(encoding="utf-8") + own.read_text(encoding="utf-8"))


def content_security_hash(text: str) -> str:
    """Return the Content-Security-Policy hash of an inline style sheet or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _Template(jinja2.Template):
    """A template that escapes invisible characters in its output."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        return escape_invisible(super().render(*args, **kwargs))


def template_environment(folder: Path, filters: dict[str, Any], *, html: bool) -> jinja2.Environment:
    """Return a Jinja environment for a folder that escapes every expression for HTML or Markdown."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=html,
        finalize=None if html else escape_markdown,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=html,
    )
    made.template_class = _Template
    made.filters |= {
        "address": markdown_link,
        "number": format_number,
        "percent": format_percent,
        "safe_url": safe_url,
        "size": format_bytes,
    }
    made.filters |= {"passage": escape_text_for_html, **filters}
    return made
