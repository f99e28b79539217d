"""Pages and cards show deceptive names: hidden characters are visible, and running text keeps its direction."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from markupsafe import Markup

from pipeline.core.display_text import is_invisible
from pipeline.core.markup import escape_text_for_html, template_environment

NAME = "factuur\u202egnp.exe\u200b\x1b[2K\udcff\u2066\ufeff\u2028"
SHOWN = "factuur\\u202egnp.exe\\u200b\\x1b[2K\\udcff\\u2066\\ufeff\\u2028"
TEMPLATE = """<a title="{{ name }}">{{ name }}</a>
{{ made }}"""


def test_name_on_a_page_shows_its_hidden_characters(tmp_path: Path) -> None:
    (tmp_path / "page").write_text(TEMPLATE)
    for html in (True, False):
        made = Markup("<b>{}</b>").format(NAME)
        text = template_environment(tmp_path, {}, html=html).get_template("page").render(name=NAME, made=made)
        assert text.count("gnp.exe") == 3 and not any(map(is_invisible, text))
        assert unescape(text).count(SHOWN) == (3 if html else 1)
        assert text.encode("utf-8"), "half of a surrogate pair stops no page"


def test_running_text_keeps_characters_that_its_script_needs() -> None:
    needed = "سلام می\u200cخواهم \u200fשלום\u200f 👩\u200d🔬 af\u00adbreken <b> & \U0001f3f4\U000e0067\U000e007f"
    shown = str(escape_text_for_html(needed))
    assert shown.startswith("<bdi>") and unescape(shown[5:-6]) == needed and "<b>" not in shown
    assert not any(map(is_invisible, shown)), "they are numbers, which the page keeps"
    assert escape_text_for_html("a", False) == "a"


def test_running_text_cannot_change_the_direction_of_what_follows(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("{{ text | passage }}")
    text = (
        template_environment(tmp_path, {}, html=True).get_template("page").render(text="a\u202eb\u2069c\u2067\x07\x85d")
    )
    assert text == "<bdi>a\\u202eb\\u2069c\\u2067\\x07\\u0085d</bdi>"
    assert not re.search("[\u202a-\u202e\u2066-\u2069]|&#x20(2|6)", text)
