"""The paths of a results folder: names match templates, and no other module hard-codes one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import layout
from pipeline.layout import PathTemplate

PACKAGE = Path(__file__).parents[1] / "pipeline"
PLACES = {name: value for name, value in vars(layout).items() if isinstance(value, PathTemplate)}
FILE_NAMES = [value for name, value in vars(layout).items() if name.isupper() and type(value) is str]
RECORDS_OF_STEPS = {"SEGMENT_RECORD", "CRATE_RECORD", "REPORT_RECORD"}  # each is a RECORD too
WITH_DOTS = ("job", "attempt", "name")
# Modules that hard-code such paths, with reasons.
ALLOWED = {
    "provenance/verify_attestations.py": "runs without this package",
    "provenance/verify_files.py": "runs without this package",
    "scaffold/new_parts.py": "names files of the project",
}
# Strings that look like paths of a results folder, or are translated literally.
OTHER_WORDS = re.compile(
    r"\{data\}/models/NAME|llama-models, models/llama3_1|tokens/s\b|huggingface\\?\.co/datasets"
    r"|in models/\{name\}/final, which|of every file of models/\{name\}/final"
)
UNKNOWN = "\0"


def wildcards(place: PathTemplate) -> list[str]:
    return re.findall(r"\{(\w+)\}", place)


def values_of(place: PathTemplate) -> st.SearchStrategy[dict[str, str]]:
    """Return values for the wildcards of a path, like names of sections, jobs and files."""
    name = st.from_regex(r"[a-z0-9][a-z0-9_-]*", fullmatch=True)
    dotted = st.lists(name, min_size=1, max_size=5).map(".".join)
    special = {"split": st.sampled_from(["train", "validation"]), **dict.fromkeys(WITH_DOTS, dotted)}
    special |= {
        "stamp": st.from_regex(r"[0-9]{8}T[0-9]{12,20}", fullmatch=True),
        "process": st.from_regex("[1-9][0-9]*", fullmatch=True),
    }
    return st.fixed_dictionaries({wildcard: special.get(wildcard, name) for wildcard in wildcards(place)})


@given(st.sampled_from(sorted(PLACES)), st.data())
def test_parsed_name_returns_its_values(kind: str, data: st.DataObject) -> None:
    place = PLACES[kind]
    values = data.draw(values_of(place))
    name = place.relative_path(**values)
    assert place.parse(name) == values
    assert place.path(Path("run"), **values) == Path("run", name) == Path(place.path_with_wildcards("run", **values))
    some = {wildcard: values[wildcard] for wildcard in wildcards(place)[:1]}
    assert (
        place.fill(**some).relative_path(**values) == name
        and wildcards(place.fill(**some)) == wildcards(place)[len(some) :]
    )
    others = {name for name, other in PLACES.items() if other.parse(place.relative_path(**values)) is not None} - {kind}
    assert others <= ({"RECORD"} if kind in RECORDS_OF_STEPS else RECORDS_OF_STEPS if kind == "RECORD" else set())


@given(st.sampled_from(sorted(PLACES)), st.text(min_size=1))
def test_foreign_names_have_no_values(kind: str, other: str) -> None:
    place = PLACES[kind]
    values = {**dict.fromkeys(wildcards(place), "train"), "stamp": "20260101T000000000000", "process": "1"}
    name = place.relative_path(**values)
    assert place.parse(name) is not None
    for wrong in (f"{name}/{other}", f"{other}/{name}", ""):
        assert place.parse(wrong) is None


def test_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="model"):
        layout.MILESTONE.path(Path("run"), step=8)


def test_file_in_a_folder_has_the_wildcards_of_the_folder() -> None:
    place = layout.CORPUS.child("lengths.json")
    assert place == "corpus/{corpus}/lengths.json" and place.relative_path(corpus="main") == "corpus/main/lengths.json"
    assert place.parse("corpus/main/lengths.json") == {"corpus": "main"}


def test_glob_results_are_sorted_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b/8", "a/8", "a/16", "a/.partial-24", ".hidden/8"):
        (tmp_path / "models" / name.replace("/", "/milestones/")).mkdir(parents=True)
    results = [(path.parts[-3], path.name) for path in layout.MILESTONE.glob(tmp_path)]
    assert results == [("a", "16"), ("a", "8"), ("b", "8")]
    assert layout.MILESTONE.glob(tmp_path, model="a", step="1*") == [
        layout.MILESTONE.path(tmp_path, model="a", step=16)
    ]
    assert layout.MILESTONE.glob(tmp_path / "none") == []
    assert layout.MILESTONE.glob_pattern(model="a") == "models/a/milestones/*"


def test_each_path_is_declared_once() -> None:
    tree = ast.parse((PACKAGE / "layout.py").read_text(encoding="utf-8"))
    names = [
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    assert len(names) == len({*names}) and len({*PLACES.values()}) == len(PLACES) > 80


def test_every_declared_path_is_used() -> None:
    modules = [file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "layout.py"]
    rules = [*PACKAGE.parent.glob("rules/*.smk"), PACKAGE.parent / "Snakefile"]
    words = {word for file in (*modules, *rules) for word in re.findall(r"[A-Z_]+", file.read_text(encoding="utf-8"))}
    assert PLACES.keys() - words == set()


def spelled(node: ast.AST) -> str:
    """Return the spelling of a string or path, with one character for each computed part."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(spelled, values))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return f"{spelled(left)}/{spelled(right)}"
    return UNKNOWN


def texts(node: ast.AST, is_tracked: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and spelling of the strings and paths below a node, without docstrings.

    Args:
        is_tracked: whether the node is a part of a text or path that was yielded.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    text = spelled(node)
    if text != UNKNOWN and not is_tracked:
        yield node.lineno, text  # type: ignore[attr-defined]  # each that has a spelling has a line
    for child in ast.iter_child_nodes(node):
        yield from texts(child, is_tracked=text != UNKNOWN and spelled(child) != UNKNOWN)


def spells_a_path() -> re.Pattern[str]:
    """Return a regex of spellings reserved for layout: paths of several parts, their beginnings, and file names."""
    paths = [place for place in PLACES.values() if "/" in place]
    patterns = [re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) for path in paths]
    names = [re.escape(name) for name in (*FILE_NAMES, layout.CRATE)]
    folders = "|".join(sorted({path.partition("/")[0] for path in paths} - {layout.LOGS, layout.SCRATCH}))
    anywhere = rf"(?<![\w.-])(?:{'|'.join([*patterns, *names])})(?![\w-])"
    return re.compile(rf"{anywhere}|\A(?:{UNKNOWN}/)?(?:{folders})/|\A{UNKNOWN}/(?:{folders})\Z")


@pytest.mark.parametrize(
    ("code", "is_path"),
    [
        ('run / "models" / name / "milestones"', True),
        ('Path(run, f"provenance/records/{job}.json")', True),
        ('sorted(run.glob("corpus/*/filtered/*.parquet"))', True),
        ("f'{len([run / \"state.json\"])} of them'", True),
        ('path.startswith("tokens/")', True),
        ('"writes tokens.json and a model/part"', False),
        ('f"{speed} tokens/s"', False),
        ("layout.RECORD.path(run, job=job)", False),
    ],
)
def test_hard_coded_path_is_detected(code: str, is_path: bool) -> None:
    assert (
        any(spells_a_path().search(OTHER_WORDS.sub("", text)) for _, text in texts(ast.parse(f"a = {code}"))) == is_path
    )


def test_no_other_module_hard_codes_a_path() -> None:
    regex, result = spells_a_path(), {}
    for file in sorted(PACKAGE.rglob("*.py")):
        module = file.relative_to(PACKAGE).as_posix()
        for line, text in texts(ast.parse(file.read_text(encoding="utf-8"))):
            if module != "layout.py" and module not in ALLOWED and regex.search(OTHER_WORDS.sub("", text)):
                result[f"{module}:{line}"] = text
    assert result == {}


# Each of these reads unarchived files: of running jobs, of steps without units, or before archiving.
LISTS_SINGLE_FILES = {
    "slurm/waiting_for_leftover_jobs.py",
    "job/job_entry_point.py",
    "forecast/forecast_inputs.py",
    "pretrain/training_follower.py",
    "provenance/run_signing_and_log_checkpoint.py",
    "opt_out/other_runs_fingerprint.py",
}
LISTING = re.compile(r"\b(RECORD|ATTEMPT)\.glob\(|\bREADINGS\b[^\n]*\.glob\(|for place in RECORD_PLACES")


def test_records_attempts_and_readings_in_archives_are_listed() -> None:
    package = Path(layout.__file__).parent
    results = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if LISTING.search(path.read_text("utf-8"))
    }
    assert results == LISTS_SINGLE_FILES
