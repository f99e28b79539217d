"""Pluralization, escaped names and tables within the terminal width."""

import io
import json
import unicodedata
from contextlib import redirect_stdout

import pytest

from pipeline.cli.entry_point import main
from pipeline.core.display_text import (
    escape_invisible,
    escape_standard_output,
    escape_to_one_line,
    is_invisible,
    pluralize,
)
from pipeline.core.errors import InputError


def test_pluralize_uses_the_singular_only_for_one() -> None:
    assert [pluralize(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]


def test_name_cannot_forge_a_line_or_move_the_cursor() -> None:
    assert escape_to_one_line("a\nall is well\x1b[2K\udcff é") == "a\\nall is well\\x1b[2K\\udcff é"


HIDDEN = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0x200B, 0x2010), 0xFEFF, 0x2028, 0x2029, 0xAD, 0x3164]
HIDDEN += [*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0), 0xDC80, 0xDFFF, 0xE0041, 0xE0100]


def test_only_invisible_characters_are_escaped() -> None:
    for number in HIDDEN:
        for text in (escape_invisible(f"a{chr(number)}b"), escape_to_one_line(f"a{chr(number)}b")):
            assert text.isascii() and text.startswith("a\\") and text.endswith("b"), hex(number)
    plain = "Ünïcode, שלום, سلام, 日本語, 🙂, é:\n\tzo\u00a0is\u202fhet"
    assert escape_invisible(plain) == plain
    # The categories of Unicode's own table: no invisible or control character remains.
    everything = "".join(map(chr, range(0x110000)))
    left = {unicodedata.category(c) for c in escape_invisible(everything) if c not in "\n\t"}
    assert left.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"}) and not any(map(is_invisible, escape_invisible(everything)))


def test_escaped_text_is_equal_in_json() -> None:
    text = "a\u202eb\x85\U000e0041\u2028"
    assert json.loads(escape_invisible(json.dumps(text, ensure_ascii=False))) == text


def test_errors_and_command_output_contain_no_invisible_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(InputError("naam\u202egnp.exe\nerror: all is well\x1b[2K")) == (
        "naam\\u202egnp.exe\\nerror: all is well\\x1b[2K"
    )
    with redirect_stdout(io.StringIO()) as stream, escape_standard_output(stream):
        print("een\x1b[31m\ntwee\u202e\udcff\t3")
    assert stream.getvalue() == "een\\x1b[31m\ntwee\\u202e\\udcff\t3\n"
    assert main(["trace", "no\u202esuch\x1b[2Krun", "x"]) == 2
    captured = capsys.readouterr()
    assert not any(is_invisible(c) for c in captured.out + captured.err) and "no\\u202esuch\\x1b[2Krun" in captured.err
