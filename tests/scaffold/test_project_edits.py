"""Project edits: all or none, each at its position."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.scaffold.project_edits import ClassMember, CollectionItem, NewFile, TableRow, apply_edits

MODULE = '''"""Rules."""

class Rules:
    words: int = 3
    marks: int = 4

    def check(self) -> None:
        pass


class Block:
    declared = (
        "words",
        "marks",
    )


NAMES: dict[str, str] = {
    "a": "b",
}
'''
TABLE = "# Tasks\n\n| a |\n|---|\n| one |\n| two |\n\ntext\n\n| another |\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "rules.py").write_text(MODULE)
    (tmp_path / "tasks.md").write_text(TABLE)
    return tmp_path


def test_members_items_and_rows_are_inserted_at_their_positions(project: Path) -> None:
    changed = apply_edits(
        project,
        [
            ClassMember("rules.py", "Rules", "    lines: int = 5\n"),
            ClassMember("rules.py", "Rules", "\n    def count(self) -> None:\n        pass\n"),
            CollectionItem("rules.py", "Block.declared", '        "lines",\n'),
            CollectionItem("rules.py", "NAMES", '    "c": "d",\n'),
            TableRow("tasks.md", ("one",), "| one and a half |\n"),
            TableRow("tasks.md", ("nowhere",), "| three |\n"),
            NewFile("new/file.txt", "x\n"),
        ],
    )
    assert changed == [Path("rules.py"), Path("tasks.md"), Path("new/file.txt")]
    expected = MODULE.replace("    marks: int = 4\n", "    marks: int = 4\n    lines: int = 5\n")
    expected = expected.replace("        pass\n", "        pass\n\n    def count(self) -> None:\n        pass\n")
    expected = expected.replace('        "marks",\n', '        "marks",\n        "lines",\n')
    expected = expected.replace('    "a": "b",\n', '    "a": "b",\n    "c": "d",\n')
    assert (project / "rules.py").read_text() == expected
    table = "| one |\n| one and a half |\n| two |\n| three |\n\ntext"
    assert table in (project / "tasks.md").read_text()
    assert (project / "new/file.txt").read_text() == "x\n"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (NewFile("rules.py", ""), "rules.py exists: choose another name"),
        (ClassMember("rules.py", "Absent", ""), "rules.py has no class Absent"),
        (CollectionItem("rules.py", "Block.words", ""), "rules.py has no Block.words"),
        (CollectionItem("rules.py", "declared", ""), "rules.py has no declared"),
        (TableRow("rules.py", (), ""), "rules.py has no table"),
        (TableRow("absent.md", (), ""), "absent.md has no table"),
    ],
)
def test_impossible_edit_leaves_all_files_unchanged(project: Path, edit: NewFile, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_edits(project, [NewFile("new.txt", "x"), ClassMember("rules.py", "Rules", "    a: int\n"), edit])
    assert not (project / "new.txt").exists() and (project / "rules.py").read_text() == MODULE
