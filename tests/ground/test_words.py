"""A number has the noun that it asks for."""

from pipeline.ground.words import counted, printable


def test_one_is_single_and_the_others_are_not() -> None:
    assert [counted(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]


def test_a_name_cannot_forge_a_line_or_move_the_cursor() -> None:
    assert printable("a\nall is well\x1b[2K\udcff é") == "a\\nall is well\\x1b[2K\\udcff é"
