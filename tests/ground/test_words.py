"""A number has the noun that it asks for, a name cannot forge a line, and a wide table stays within its lines."""

from pipeline.ground.words import aligned, counted, in_blocks, printable


def test_one_is_single_and_the_others_are_not() -> None:
    assert [counted(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]


def test_a_name_cannot_forge_a_line_or_move_the_cursor() -> None:
    assert printable("a\nall is well\x1b[2K\udcff é") == "a\\nall is well\\x1b[2K\\udcff é"


def test_columns_that_have_no_room_follow_below_with_the_names_of_the_rows() -> None:
    rows = [["estimated", "one", "two", "three"], ["time", "1 s", "22 s", "333 s"]]
    assert in_blocks(rows, 30) == aligned(rows)
    assert in_blocks(rows, 20) == [
        "estimated  one  two",
        "time       1 s  22 s",
        "",
        "estimated  three",
        "time       333 s",
    ]
    assert in_blocks(rows, 5)[:3] == ["estimated  one", "time       1 s", ""]  # one column always has room
    assert in_blocks([["alone"], ["x"]]) == ["alone", "x"]
