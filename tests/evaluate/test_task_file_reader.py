from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.evaluate.settings import KNOWN_SUITES, KnownSuite, Suite
from pipeline.evaluate.task_file_reader import (
    list_suite_files,
    read_data_file_name,
    read_data_rows,
    read_data_set_name,
    read_task_config,
)

TASK = "task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_suite_files_are_its_tasks_their_includes_and_data(tmp_path: Path):
    tasks, data = tmp_path / "tasks", tmp_path / "data"
    base = write(tasks, "_base", TASK.format(name="base", data="beside.jsonl"))
    one = write(tasks, "one.yaml", "include: _base\ntask: one\n")
    two = write(tasks, "two.yaml", TASK.format(name="two", data="far.jsonl.gz"))
    data_file = write(tasks, "beside.jsonl", "{}\n")
    far = write(data, "far.jsonl.gz", "")
    write(tasks, "README.md", "no input")
    write(data, "unused.jsonl", "no input")
    suite = Suite(name="s", language="nl", folder=str(tasks), data=str(data))
    assert list_suite_files(suite) == sorted([base, one, two, data_file, far])
    assert read_task_config(one)["task"] == "one"
    assert read_data_file_name(one, read_task_config(one)) == "beside.jsonl"
    far.unlink()
    with pytest.raises(InputError, match=r"two\.yaml: its data file far\.jsonl\.gz is in neither"):
        list_suite_files(suite)


def test_mirror_needs_a_data_set(tmp_path: Path):
    suite = Suite(name="s", language="nl", tasks=["x"], data=str(tmp_path))
    with pytest.raises(InputError, match=r"NAMESPACE/DATASET/README\.md"):
        list_suite_files(suite)
    readme = write(tmp_path / "facebook" / "belebele", "README.md", "")
    table = write(tmp_path / "facebook" / "belebele" / "data", "x.parquet", "")
    assert list_suite_files(suite) == [readme, table]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("task: [", "not valid YAML"),
        ("task: a\ndoc_to_text: !function utils.f\n", "plain YAML"),
        ("task: a\ninclude: b\ntask: c", r"wrong\.yaml, line 3: the key task occurs twice"),
        ("just text", "holds no keys"),
        ("dataset_path: json\n", "the key task is missing"),
        ("include: nowhere\n", "names nowhere"),
        ("include: wrong.yaml\n", "includes itself"),
        ("task: a\ndataset_path: facebook/belebele\n", "dataset_path: json"),
    ],
)
def test_invalid_task_file_is_refused_by_name(tmp_path: Path, text: str, problem: str):
    path = write(tmp_path, "wrong.yaml", text)
    with pytest.raises(InputError, match=problem) as caught:
        read_data_file_name(path, read_task_config(path))
    assert str(path) in str(caught.value)


def test_folder_without_tasks_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no \*\.yaml"):
        list_suite_files(Suite(name="s", language="nl", folder=str(tmp_path)))


def test_rows_are_read_plain_and_compressed_and_an_invalid_line_is_named(tmp_path: Path):
    lines = '{"good": "Hij loopt.", "bad": "Hij lopen."}\n{"good": "é", "bad": "e"}\n'
    plain = write(tmp_path, "a.jsonl", lines)
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.encode()))
    assert read_data_rows(plain) == read_data_rows(packed)
    assert read_data_rows(plain)[1]["good"] == "é"
    with pytest.raises(InputError, match="line 3: not a JSON object"):
        read_data_rows(write(tmp_path, "b.jsonl", lines + "oops\n"))
    with pytest.raises(InputError, match="line 3: the field bad is not in every line"):
        read_data_rows(write(tmp_path, "c.jsonl", lines + '{"good": "x"}\n'))
    with pytest.raises(InputError, match="line 3: the key good occurs twice"):
        read_data_rows(write(tmp_path, "e.jsonl", lines + '{"good": "x", "bad": "y", "good": "z"}\n'))
    with pytest.raises(InputError, match="is empty"):
        read_data_rows(write(tmp_path, "d.jsonl", ""))
    packed.write_bytes(packed.read_bytes()[:30])
    with pytest.raises(InputError, match="cannot be read"):
        read_data_rows(packed)


@pytest.mark.parametrize("name", sorted(name for name, suite in KNOWN_SUITES.items() if suite.folder))
def test_task_files_of_the_project_are_well_formed(name: KnownSuite):
    folder = Path(__file__).parents[2] / str(KNOWN_SUITES[name].folder)
    readme = (folder.parent / "README.md").read_text(encoding="utf-8")
    tasks = {path: read_task_config(path) for path in sorted(folder.glob("*.yaml"))}
    assert tasks
    for path, task in tasks.items():
        assert task["task"] == path.stem
        if read_data_set_name(task) is None:
            assert path.stem.startswith(read_data_file_name(path, task).split(".")[0]), "two tasks may read one file"
        assert f"`{path.stem}`" in readme, "in the list of tasks"
