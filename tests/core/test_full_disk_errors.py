"""A full disk under the results: one sentence, no partial output, and the run continues after space is freed.

Each step runs by its command line with results on a small file system: first full, then with space.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import full_disk_errors
from pipeline.core.errors import EXIT_DISK_FULL
from pipeline.corpus.settings import Corpus, FilterSettings
from pipeline.job import versions
from pipeline.pretrain import segment
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens.settings import ShardSettings
from tests.conftest import is_lacking
from tests.corpus.conftest import TEXTS, Chain, json_lines
from tests.pretrain.conftest import settings, tokens  # noqa: F401

ROOT = Path(__file__).parents[2]
SCRIPT = """
mount -t tmpfs -o size={kilobytes}k none {disk} || exit 99
cd {root}
{fill}
( {command} ) >{out}/printed 2>{log}; echo $? >{out}/code
cp {log} {out}/log
find {disk} -type f -not -name filler >{out}/left
cp -r {disk}/results/test/provenance/attempts {out}/attempts 2>/dev/null
mount -o remount,size=200m {disk}
( {command} ) >>{out}/printed-then 2>&1; echo $? >{out}/code-then
cp -r {disk}/results {out}/results
"""


@dataclass
class Tried:
    """The result of a step on a full disk, and then with space."""

    code: int
    log: str
    printed: str
    left: list[str]
    attempts: list[dict[str, Any]]
    code_then: int
    printed_then: str
    results: Path

    def record(self) -> dict[str, Any]:
        """Return the record of the second attempt."""
        (path,) = (self.results / "test/provenance/records").iterdir()
        content: dict[str, Any] = json.loads(path.read_text())
        return content


def tried(
    folder: Path,
    kilobytes: int,
    step: str,
    settings: str,  # noqa: F811
    inputs: dict[str, list[Path]],
    outputs: dict[str, str],
    *options: str,
    filled: bool = False,
) -> Tried:
    """Run a step twice; `{disk}` in the options is the small disk, `filled` or with the given free kilobytes."""
    disk, out = folder / "disk", folder / "out"
    disk.mkdir()
    out.mkdir()
    run, module = disk / "results/test", f"pipeline.{step}"
    words = [sys.executable, "-m", "pipeline", *step.split("."), "--settings", settings]
    words += ["--code", versions.code_version(module), "--environment", versions.environment_version(module, "cpu")]
    for name, paths in inputs.items():
        words += ["--input", name, *map(str, paths)]
    for name, path in outputs.items():
        words += ["--output", name, str(run / path)]
    words += ["--record", str(run / f"provenance/records/{step}.json"), *(word.format(disk=disk) for word in options)]
    script = SCRIPT.format(
        kilobytes=kilobytes,
        disk=disk,
        root=ROOT,
        out=out,
        log=disk / "log" if filled else out / "first-log",
        command=shlex.join(words),
        fill=f"touch {disk}/log; head -c 1G /dev/zero >{disk}/filler 2>/dev/null" if filled else "",
    )
    mount = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", script]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        is_lacking("there is no unshare")
    if done.returncode == 99 or "unshare:" in done.stderr:
        is_lacking("no file system can be mounted here")
    texts = {path.name: path.read_text() for path in out.iterdir() if path.is_file()}
    return Tried(
        int(texts["code"]),
        texts["log"],
        texts["printed"],
        sorted(Path(line).relative_to(disk).as_posix() for line in texts["left"].splitlines()),
        [json.loads(path.read_text()) for path in sorted((out / "attempts").glob("[!.]*.json"))],
        int(texts["code-then"]),
        texts["printed-then"],
        out / "results",
    )


def check(result: Tried) -> str:
    """Check the properties of every step; return its sentence."""
    assert result.code == EXIT_DISK_FULL, (result.code, result.log, result.printed)
    *_, sentence = result.log.splitlines()
    assert sentence.startswith("error: ") and "free space there" in sentence
    assert "Traceback" not in result.log
    (attempt,) = result.attempts
    assert (
        attempt["status"] == "failed"
        and attempt["error"].startswith("DiskFull: ")
        and "free space there" in attempt["error"]
    )
    assert result.code_then == 0, result.printed_then
    assert result.record()["outputs"] and not list(result.results.rglob(".partial*"))
    return sentence


ATTEMPT = tuple(f"results/test/provenance/{name}" for name in ("attempts/", "readings/", "attestations.intoto.jsonl"))


@pytest.mark.parametrize("step", ["tokenizer.train", "tokens.shard", "corpus.filter"])
def test_data_step_reports_a_full_disk_and_continues_after_space_is_freed(
    step: str,
    tokens: dict[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    """Steps that write through a Rust library, through Arrow, and through datatrove and Parquet."""
    documents = [tokens["tokenizer"].parent / "documents.parquet"]
    if step == "tokenizer.train":
        chosen = TrainSettings(vocabulary_size=304, validation_fraction=0.1).model_dump_json()
        outputs = {
            "tokenizer": "tokenizer/main/tokenizer.json",
            "configuration": "tokenizer/main/tokenizer_config.json",
        }
        result = tried(tmp_path, 16, step, chosen, {"documents": documents}, outputs)
    elif step == "tokens.shard":
        chosen = ShardSettings(shard=0, shards=1, validation_fraction=0.1).model_dump_json()
        inputs = {"tokenizer": [tokens["tokenizer"]], "documents": documents}
        outputs = {name: f"tokens/main/{name}/0.arrow" for name in ("train", "validation")}
        result = tried(tmp_path, 24, step, chosen, inputs, outputs)
    else:
        (tmp_path / "chain").mkdir()
        chain = Chain(tmp_path / "chain")
        chain.filter("words", {"a.jsonl": json_lines(TEXTS)})
        rules = Corpus().model_dump(include=set(FilterSettings.model_fields) & set(Corpus.model_fields))
        chosen = FilterSettings.model_validate({**rules, "source": "words"}).model_dump_json()
        inputs = {"unit": [chain.folder / "words.units/0.json"], "files": [chain.folder / "raw/words/a.jsonl"]}
        outputs = {name: f"corpus/main/{name}/words.0.parquet" for name in ("documents", "removed")}
        result = tried(tmp_path, 24, step, chosen, inputs, outputs, "--private", str(tmp_path / "private"))
    sentence = check(result)
    assert f"error: {tmp_path}/disk/results/test" in sentence and "is full, or its quota is used up" in sentence
    assert all(path.startswith(ATTEMPT) for path in result.left), "only the attempt is left"


@pytest.mark.slow
@pytest.mark.parametrize(
    "launch", ["", pytest.param("torchrun --standalone --nproc-per-node=2", marks=pytest.mark.thorough)]
)
def test_training_reports_a_full_disk_at_its_milestone_and_resumes(
    launch: str,
    settings: Callable[..., SegmentSettings],  # noqa: F811
    tokens: dict[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    """Recovery checkpoints are on another disk, and the second attempt uses the newest."""
    inputs = {name: [path] for name, path in tokens.items()}
    elsewhere = tmp_path / "elsewhere"
    options = ["--instance", "model=tiny", "step=10", "--scratch", "{disk}/results/test/scratch/tiny/10/code"]
    options += ["--recovery", str(elsewhere), "--launch", launch]
    chosen = settings().model_dump_json()
    result = tried(
        tmp_path, 3000, "pretrain.segment", chosen, inputs, {"milestone": "models/tiny/milestones/10"}, *options
    )
    check(result)
    assert not [path for path in result.left if path.startswith("results/test/models")]
    assert result.record()["counts"]["resumed_from"] == 9 and not elsewhere.exists()


@pytest.mark.slow
def test_export_on_a_full_disk_leaves_no_partial_model(
    settings: Callable[..., SegmentSettings],  # noqa: F811
    tokens: dict[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    milestone = tmp_path / "milestone"
    segment.run(settings(), **tokens, previous=[], milestone=milestone, scratch=tmp_path / "scratch", launch="")
    outputs = {"final": "models/tiny/final", "metrics": "models/tiny/metrics.jsonl", "tensorboard": "models/tiny/board"}
    outputs |= {"document_losses": "models/tiny/document_losses.parquet"}
    result = tried(tmp_path, 64, "pretrain.export", "{}", {"milestones": [milestone]}, outputs)
    check(result)
    assert all(path.startswith(ATTEMPT) for path in result.left), result.left


def test_full_disk_is_reported_even_if_attempt_and_log_cannot_be_written(tmp_path: Path) -> None:
    raw, listing = tmp_path / "raw/a.txt", tmp_path / "0.json"
    raw.parent.mkdir()
    raw.write_text("Artikel 1")
    listing.write_text(json.dumps({"unit": 0, "files": [{"name": "a.txt", "part": None}]}))
    inputs, outputs = {"listing": [listing], "files": [raw]}, {"fingerprint": "sources/laws/fingerprints/0.json"}
    options = ("--raw", str(raw.parent))
    result = tried(tmp_path, 64, "sources.fingerprint", '{"source": "laws"}', inputs, outputs, *options, filled=True)
    assert result.code == EXIT_DISK_FULL and result.log == ""
    assert result.printed.startswith(f"error: {tmp_path}/disk/results/test/provenance/attempts is full")
    assert not result.attempts and not [path for path in result.left if path.startswith("results")]
    assert result.code_then == 0, result.printed_then


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        Exception("No space left on device (os error 28)"),
        OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"),
        shutil.Error([("a", "b", "[Errno 122] Disk quota exceeded: 'b'")]),
    ],
)
def test_full_disk_errors_of_each_library_are_recognized(error: Exception) -> None:
    assert full_disk_errors.is_disk_full(error)
    try:
        try:
            raise error
        except Exception:
            raise RuntimeError("the file could not be closed")  # noqa: B904
    except RuntimeError as later:
        assert full_disk_errors.is_disk_full(later)


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), ValueError("28"), None])
def test_other_errors_are_not_disk_full(error: Exception | None) -> None:
    assert not full_disk_errors.is_disk_full(error)
