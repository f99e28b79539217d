"""The mirror of data sets: copied once at a fixed revision, and checked when an evaluation reads it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import yaml

from pipeline.cli.entry_point import main
from pipeline.core.errors import InputError
from pipeline.evaluate import suites
from pipeline.evaluate.dataset_mirror import find_data_sets
from pipeline.evaluate.settings import RequestSettings, Suite
from pipeline.evaluate.task_file_reader import ItemFile, list_item_files, list_suite_files
from tests.evaluate.hub import Hub

BELEBELE, BLIMP = "facebook/belebele", "jmichaelov/blimp_nl"
ROWS = b'{"question": "Waar zit de kat op de mat?"}\n' * 50
CARD = "---\nlicense: cc-by-sa-4.0\n---\n# A card\n"
TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with mock.patch.dict(
        os.environ, dict.fromkeys(suites.OFFLINE_VARIABLES, "1")
    ):  # as the step imports them, for other tests
        import datasets  # noqa: F401
        from huggingface_hub import constants
    served = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", served.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.address + TEMPLATE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", served.address)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    yield served
    served.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mirror(folder: Path, *arguments: str) -> int:
    return main(["mirror", str(folder), *arguments])


def evaluate(folder: Path, *tasks: str) -> None:
    """Prepare a suite that reads a mirror; no test reaches the model."""
    suite = Suite(name="shipped", language="nl", tasks=[*tasks], data=str(folder))
    suites.answer_suites(RequestSettings(suites=[suite]), mock.Mock(), list_suite_files(suite))


def test_mirror_copies_data_and_records_revision_license_and_hashes(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"README_md": CARD, "data__nld_parquet": b"PAR1...", "data__nld_jsonl": ROWS, "old_csv_gz": b"\x1f"}
    code = {"make_py": "import os", "data__evil_pkl": b"\x80", "data_json_py": "import os", "all_zip": b"PK"}
    commit = hub.add(BELEBELE, **data, **code)
    assert mirror(folder, "belebele_nld_Latn") == 0
    names = {"README.md": CARD.encode(), "data/nld.parquet": b"PAR1...", "data/nld.jsonl": ROWS, "old.csv.gz": b"\x1f"}
    result = files_of(folder)
    listed = json.loads(result.pop("mirror.json"))
    assert result == {f"{BELEBELE}/{name}": content for name, content in names.items()}
    files = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in names.items()
    }
    assert listed == {
        "data_sets": {BELEBELE: {"revision": commit, "license": "cc-by-sa-4.0", "files": files}},
    }
    assert list(listed["data_sets"][BELEBELE]["files"]) == sorted(names)
    assert [path.name for path in folder.parent.iterdir()] == ["mirror"], "no other file is left"
    message = f"{BELEBELE}: 4 files, {sum(map(len, names.values())):,} bytes, 4 others left out\n"
    assert capsys.readouterr().out == f"{message}{BELEBELE}: revision {commit}, license cc-by-sa-4.0\n"


def test_second_mirror_call_downloads_nothing_and_keeps_the_revision(hub: Hub, folder: Path) -> None:
    first = hub.add(BELEBELE, README_md=CARD, a_jsonl=ROWS, old_jsonl=ROWS)
    assert mirror(folder, "belebele_nld_Latn") == 0
    before = files_of(folder)
    second = hub.add(BELEBELE, README_md=CARD, a_jsonl=ROWS * 2)
    hub.asked.clear()
    assert mirror(folder, "belebele_nld_Latn", "belebele_eng_Latn") == 0
    assert (files_of(folder), hub.asked) == (before, [])
    assert mirror(folder, "belebele_nld_Latn", "--revision", f"{BELEBELE}=main") == 0
    result = files_of(folder)
    assert json.loads(result["mirror.json"])["data_sets"][BELEBELE]["revision"] == second
    assert result.keys() == {"mirror.json", f"{BELEBELE}/README.md", f"{BELEBELE}/a.jsonl"}
    hub.asked.clear()
    assert mirror(folder, "belebele_nld_Latn", "--revision", f"{BELEBELE}=main") == 0
    assert not any("resolve" in path for path in hub.asked)
    assert mirror(folder, "belebele_nld_Latn", "--revision", f"{BELEBELE}={first}") == 0
    assert files_of(folder) == before


def test_additional_task_adds_its_data_set(hub: Hub, folder: Path, tmp_path: Path) -> None:
    commits = {name: hub.add(name, README_md="# Without keys\n", a_jsonl=ROWS) for name in (BLIMP, BELEBELE)}
    configuration = tmp_path / "run.yaml"
    micro = yaml.safe_load((ROOT / "config/micro.yaml").read_text(encoding="utf-8"))
    suite = {"name": "belebele", "language": "nl", "tasks": ["belebele_nld_Latn"], "data": "{data}/mirror"}
    configuration.write_text(json.dumps(micro | {"evaluation": {"suites": ["dutch", suite]}}))
    assert mirror(folder, "--configuration", str(configuration)) == 0
    own = tmp_path / "tasks"
    own.mkdir()
    task_file = {"task": "mine", "dataset_path": BLIMP, "output_type": "multiple_choice"}
    (own / "mine.yaml").write_text(json.dumps(task_file))
    folder_suite = {"name": "mine", "language": "nl", "folder": str(own), "data": str(folder)}
    configuration.write_text(json.dumps(micro | {"evaluation": {"suites": ["dutch", folder_suite]}}))
    assert mirror(folder, "--configuration", str(configuration)) == 0
    listed = json.loads((folder / "mirror.json").read_text())["data_sets"]
    assert {name: data_set["revision"] for name, data_set in listed.items()} == commits
    assert list(listed) == sorted(commits) and listed[BLIMP]["license"] is None


def test_known_suite_outside_the_checkout_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mirror(folder, "euroeval_dutch") == 2
    message = f"there is no *.yaml in {tmp_path}/config/tasks/euroeval_dutch; run this in your checkout"
    assert message in capsys.readouterr().err and not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "files", "message"),
    [
        (["belebele_nld_Latin"], {}, "did you mean 'belebele_nld_Latn'?"),
        (["fda"], {}, "the task fda names no data set NAMESPACE/DATASET"),
        ([], {}, "there is no task to mirror data for"),
        (["dutch"], {}, "there is no task to mirror data for"),
        (["belebele_nld_Latn", "--revision", "main"], {}, "--revision main: write NAMESPACE/DATASET=REVISION"),
        (["belebele_nld_Latn", "--revision", "a/b=main"], {}, f"no task reads 'a/b', but {BELEBELE}"),
        (["belebele_nld_Latn"], {"belebele_py": "x", "README_md": CARD, "a_jsonl": ROWS}, "is a loading script"),
        (["belebele_nld_Latn"], {"README_md": CARD, "a_zip": "PK"}, "its hub has 2 other files"),
        (["belebele_nld_Latn"], {"a_jsonl": ROWS}, f"the data set {BELEBELE} needs README.md"),
        (["belebele_nld_Latn"], {}, f"the data set {BELEBELE} cannot be downloaded (RepositoryNotFoundError"),
    ],
)
def test_unsupported_data_set_is_refused_in_one_sentence(
    arguments: list[str],
    files: dict[str, str],
    message: str,
    hub: Hub,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if files:
        hub.add(BELEBELE, **files)
    assert mirror(folder, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert not folder.exists()


def test_interrupted_download_leaves_no_partial_file_and_is_resumed(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add(BELEBELE, README_md=CARD, a_jsonl=ROWS, b_parquet=ROWS)
    hub.breaks_off = "b.parquet"
    assert mirror(folder, "belebele_nld_Latn") == 2
    assert f"the data set {BELEBELE} cannot be downloaded" in capsys.readouterr().err
    assert not folder.exists()
    hub.breaks_off = None
    hub.asked.clear()
    assert mirror(folder, "belebele_nld_Latn") == 0
    assert {path.rpartition("/")[2] for path in hub.asked if "resolve" in path} <= {"b.parquet"}
    evaluation_finds_it_whole(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["mirror"]


@pytest.mark.parametrize("file", ["a.jsonl", "b.parquet"])
def test_download_with_a_wrong_hash_is_rejected(
    file: str, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add(BELEBELE, README_md=CARD, a_jsonl=ROWS, b_parquet=ROWS)
    hub.garbles = file
    assert mirror(folder, "belebele_nld_Latn") == 2
    assert f"{file} was not downloaded as its hub has it" in capsys.readouterr().err
    assert not folder.exists()
    hub.garbles = None
    assert mirror(folder, "belebele_nld_Latn") == 0


def evaluation_finds_it_whole(folder: Path) -> None:
    """The step then reads the data, whose columns are not those of the task."""
    with pytest.raises(InputError, match="the data of belebele_nld_Latn do not load"):
        evaluate(folder, "belebele_nld_Latn")


def test_evaluation_refuses_a_file_that_differs_from_the_mirror_list(hub: Hub, folder: Path) -> None:
    for name in (BELEBELE, BLIMP):
        hub.add(name, README_md=CARD, a_jsonl=ROWS)
    assert mirror(folder, "belebele_nld_Latn", "blimp_nl") == 0
    (folder / BLIMP / "a.jsonl").write_bytes(b"of another suite")
    evaluation_finds_it_whole(folder)
    data = folder / BELEBELE / "a.jsonl"
    again = rf"run `polder mirror {folder} belebele_nld_Latn` again$"
    for damage, message in (
        (lambda: data.write_bytes(b"[" + ROWS[1:]), rf"{data} is not the file that mirror\.json lists"),
        (data.unlink, rf"{data} is listed in mirror\.json and missing"),
        (lambda: (data.parent / "b.jsonl").write_bytes(ROWS), r"b\.jsonl is not listed in mirror\.json"),
        (lambda: shutil.rmtree(data.parent), r"README\.md is listed in mirror\.json and missing"),
    ):
        damage()
        with pytest.raises(InputError, match=f"{message}.*; {again}"):
            evaluate(folder, "belebele_nld_Latn")
        assert mirror(folder, "belebele_nld_Latn") == 0
        evaluation_finds_it_whole(folder)
    (folder / "mirror.json").write_text("{}")
    with pytest.raises(InputError, match=r"is not listed in mirror\.json"):
        evaluate(folder, "belebele_nld_Latn")
    (folder / "mirror.json").write_text("[]")
    with pytest.raises(InputError, match=r"mirror\.json was not written by `polder mirror`"):
        evaluate(folder, "belebele_nld_Latn")
    (folder / "mirror.json").unlink()
    data.write_bytes(b"[" + ROWS[1:])
    evaluation_finds_it_whole(folder)


def test_mirror_killed_before_its_last_rename_is_repaired(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(BLIMP, README_md=CARD, a_jsonl=ROWS)
    hub.add(BELEBELE, README_md=CARD, a_jsonl=ROWS)
    assert mirror(folder, "blimp_nl", "belebele_nld_Latn") == 0
    hub.add(BELEBELE, README_md=CARD, a_jsonl=ROWS * 2)

    rename = os.rename

    def killed(old: Path, new: Path) -> None:
        if new == folder / BELEBELE:
            raise KeyboardInterrupt
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        assert mirror(folder, "belebele_nld_Latn", "--revision", f"{BELEBELE}=main") == 130
    with pytest.raises(InputError, match=r"is listed in mirror\.json and missing"):
        evaluate(folder, "belebele_nld_Latn")
    assert mirror(folder, "belebele_nld_Latn") == 0
    evaluation_finds_it_whole(folder)
    assert (folder / BELEBELE / "a.jsonl").read_bytes() == ROWS * 2


def test_unlisted_data_set_is_not_overwritten(hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add(BELEBELE, README_md=CARD, a_jsonl=ROWS)
    (folder / BELEBELE).mkdir(parents=True)
    (folder / BELEBELE / "README.md").write_text("mine")
    assert mirror(folder, "belebele_nld_Latn") == 2
    assert f"{BELEBELE} is not listed in mirror.json: move it away" in capsys.readouterr().err
    assert files_of(folder) == {f"{BELEBELE}/README.md": b"mine"}


def test_items_exclude_files_that_only_the_datasets_library_knows(hub: Hub, folder: Path) -> None:
    hub.add(BELEBELE, README_md=CARD, a_jsonl=ROWS)
    assert mirror(folder, "belebele_nld_Latn") == 0
    (folder / BELEBELE / "dataset_infos.json").write_text('{\n "default": {}\n}')
    suite = Suite(name="shipped", language="nl", tasks=["belebele_nld_Latn"], data=str(folder))
    assert list_item_files(suite) == [ItemFile(BELEBELE, folder / BELEBELE / "a.jsonl")]
    assert folder / "mirror.json" in list_suite_files(suite)


@pytest.mark.parametrize(
    ("metadata", "license"),
    [("license: mit", "mit"), ("license: [mit, cc0-1.0]", "mit, cc0-1.0"), ("pretty_name: A", None), ("a: [", None)],
)
def test_license_is_that_of_the_dataset_card(metadata: str, license: str | None, hub: Hub, folder: Path) -> None:
    hub.add(BELEBELE, README_md=f"---\n{metadata}\n---\n", a_jsonl=ROWS)
    assert mirror(folder, "belebele_nld_Latn") == 0
    assert json.loads((folder / "mirror.json").read_text())["data_sets"][BELEBELE]["license"] == license


def test_groups_and_tags_resolve_to_the_data_sets_of_their_tasks() -> None:
    assert find_data_sets(["ai2_arc"]) == {("arc_challenge", "allenai/ai2_arc"), ("arc_easy", "allenai/ai2_arc")}
    nested = find_data_sets(["blimp_nl"])  # a group whose members are groups
    assert len(nested) == 84 and {name for _, name in nested} == {BLIMP}
    assert len(find_data_sets(["mmlu"])) == 57  # a group of groups of tags
    assert find_data_sets(["prost"]) == {("prost", "")}  # a file of its own
