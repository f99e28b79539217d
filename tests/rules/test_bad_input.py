"""A user error ends in one sentence, a non-zero exit code and no partial output."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.conftest import Project, new_project
from tests.rules.test_determinism import hashes

MICRO = "config/micro.yaml"


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    return new_project(tmp_path / "polder")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed: 7", "sed: 7", ["config/micro.yaml, line 2: unknown key run.sed", "'seed'"]),
        ("seed: 7", "seed: seven", ["run.seed", "seven"]),
        ("nl_brieven/*.txt", "nowhere/*.txt", ["nowhere/*.txt"]),
        ("vocabulary_size: 600", "vocabulary_size: 100", ["vocabulary_size", "259"]),
        ("heads: 4", "heads: 3", ["width 32", "heads 3"]),
        ("language: nl, license: CC0-1.0, units", "language: nl, units", ["license", "missing"]),
    ],
)
def test_invalid_configuration_stops_before_any_job(fresh: Project, old: str, new: str, words: list[str]) -> None:
    fresh.edit(MICRO, old, new)
    printed = fresh.run(check=False)
    assert fresh.returncode != 0
    assert all(word in printed for word in words), printed
    assert "Traceback" not in printed
    assert not fresh.results.exists()


@pytest.mark.slow
def test_sequence_longer_than_the_corpus_is_refused(project: Project) -> None:
    project.train_alone()
    project.edit(MICRO, "sequence_length: 64", "sequence_length: 900000")
    printed = project.run(check=False)
    assert project.returncode == 2
    assert ": models.base.training.sequence_length is 900,000, which needs" in printed
    assert "Traceback" not in printed
    assert (project.results / "models/base/milestones/4").exists(), "nothing is touched before the refusal"


@pytest.mark.slow
def test_truncated_gzip_stops_at_the_corpus_counts_and_is_named(fresh: Project) -> None:
    fresh.keep_sources("en_guide")
    guide = fresh.path("config/corpus/en_guide.jsonl.gz")
    guide.write_bytes(guide.read_bytes()[:-200])
    with pytest.raises(EOFError):
        gzip.decompress(guide.read_bytes())
    printed = fresh.run("tokenizer", check=False)
    assert fresh.returncode != 0
    assert "error: source en_guide: 100.00% of its" in printed and "en_guide.jsonl.gz (truncated)" in printed
    assert "Traceback" not in printed
    assert not (fresh.results / "tokenizer").exists()
    assert not (fresh.results / "corpus/main/statistics.json").exists()


@pytest.mark.slow
def test_altered_shard_is_refused_and_rebuilt_after_removal(project: Project) -> None:
    shard = project.results / "tokens/main/train/0.arrow"
    original, before = shard.read_bytes(), hashes(project.results)
    middle = len(original) // 2
    shard.write_bytes(original[:middle] + bytes([original[middle] ^ 1]) + original[middle + 1 :])
    printed = project.run(check=False)
    assert project.returncode != 0 and "Traceback" not in printed
    assert "error: tokens/main/train/0.arrow has other bytes than its record says: it was altered; remove it" in printed
    shard.unlink()
    project.run()
    assert hashes(project.results) == before
