"""The shards are searched, and files that still contain forgotten text are named: certain or suspected."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.corpus.documents import write_removed
from pipeline.corpus.duplicates.signature_files import SignatureWriter
from pipeline.corpus.settings import SignatureSettings
from pipeline.model.settings import Architecture
from pipeline.opt_out import other_runs_fingerprint, remains
from pipeline.opt_out.settings import RemainsSettings
from pipeline.pretrain.checkpoints.recovery import training_identity
from pipeline.pretrain.settings import SegmentSettings, Training
from tests.record_content import record_content

SIGNED = SignatureSettings(bands=2, rows=1)
KEYS = {"characters": 9, "ngrams": 1, "content_1": 1, "bucket_001": 0}
SEGMENT = SegmentSettings(
    architecture=Architecture(layers=1, width=8, heads=1),
    training=Training(sequence_length=8, batch_size=1, micro_batch_size=1, steps=8, learning_rate=0.1),
    seed=1,
    first_step=4,
    last_step=8,
)
GONE, COPY, OTHER = "s/x.jsonl/1", "t/y.jsonl/1", "t/y.jsonl/2"


def documents(path: Path, ids: list[str], **columns: list[str]) -> None:
    """Write documents with an address and a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nothing = pa.nulls(len(ids), pa.string())
    pq.write_table(pa.table({"id": ids, "url": nothing, "text": ["tekst"] * len(ids), **columns}), path)


def signatures(path: Path, rows: dict[str, tuple[int, int]], **metadata: Any) -> None:
    """Write the hash and the first band of documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = SignatureWriter(path, SIGNED, {"source": path.name.split(".")[0], "unit": 0})
    writer.metadata |= metadata
    for name, (content, band) in rows.items():
        writer.add({"id": name, "content_0": content, "bucket_000": band, **KEYS})
    writer.close()


def shard(path: Path, ids: list[str]) -> None:
    """Write a shard of tokens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": pa.array(ids, pa.string())})
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def weights_entry(name: str, folder: str, weights: str) -> dict[str, Any]:
    """Return the entry of a record for a file of weights, which has the text `weights`."""
    path = f"{folder}/model.safetensors".replace(":/", ":")
    return {"name": name, "path": path, "sha256": hashlib.sha256(weights.encode()).hexdigest()}


class Runs:
    """A run `new` that forgot a document and its copy, with the files next to it."""

    def __init__(self, results: Path) -> None:
        self.results, self.new = results, results / "new"
        write_json(self.new / "provenance/records/x.json", {})
        write_json(
            self.new / "sources/s/manifest.json",
            {"source": {"name": "s"}, "opt_out": {"domains": ["weg.nl"], "ids": ["1"], "holders": []}},
        )
        signatures(self.new / "corpus/main/reserved/s.0.parquet", {GONE: (5, 7)}, documents=1, bytes=5, entries={})
        (self.new / "corpus/main/removed").mkdir()
        row = {"id": COPY, "source": "t", "stage": "deduplicate", "reason": "opt_out", "value": GONE, "bytes": 5}
        removed = {"source": "t", "unit": 0, "stage": "deduplicate"}
        write_removed(self.new / "corpus/main/removed/deduplicate.t.0.parquet", [row], removed)
        documents(self.new / "corpus/main/filtered/t.0.parquet", [COPY, OTHER])
        documents(self.new / "corpus/main/final/t.0.parquet", [OTHER])
        shard(self.new / "tokens/main/train/0.arrow", [OTHER])

    def run(self, name: str, ids: list[str]) -> Path:
        """Write another run with a corpus, tokens and a trained model."""
        folder = self.results / name
        documents(folder / "corpus/main/final/s.0.parquet", ids)
        shard(folder / "tokens/main/train/0.arrow", ids)
        self.trained(folder, "base", 8)
        return folder

    def trained(self, folder: Path, model: str, step: int, previous: Path | None = None, weights: str = "") -> Path:
        """Write a milestone that was trained on the tokens of its run, from the milestone before or other weights."""
        index = folder / "tokens/main/index.json"
        write_json(index, {"documents": folder.name})
        (folder / f"models/{model}/milestones/{step}").mkdir(parents=True)
        (folder / f"models/{model}/final").mkdir(exist_ok=True)
        sha256 = hashlib.sha256(index.read_bytes()).hexdigest()
        inputs = [{"name": "index", "path": "tokens/main/index.json", "sha256": sha256}]
        for name in ("huggingface/config.json", "state.json") if previous else ():
            write_json(previous / name, {})
            inputs.append({"name": "previous", "path": str((previous / name).relative_to(folder)), "sha256": ""})
        inputs += [weights_entry("previous", f"models/{model}/milestones/0", weights)] if weights else []
        settings = SEGMENT.model_dump(mode="json")
        instance = {"model": model, "step": str(step)}
        outputs = [weights_entry("milestone", f"models/{model}/milestones/{step}", f"{folder.name}.{model}.{step}")]
        content = record_content(
            "pretrain.segment", instance=instance, inputs=inputs, settings=settings, outputs=outputs
        )
        write_json(folder / f"provenance/records/pretrain.segment.{model}.{step}.json", content)
        return folder / f"models/{model}/milestones/{step}"

    def exported(self, folder: Path, model: str) -> str:
        """Record that the final model of a run was exported; return the weights."""
        weights = f"{folder.name}.{model}"
        outputs = [weights_entry("final", f"models/{model}/final", weights)]
        content = record_content("pretrain.export", instance={"model": model}, outputs=outputs)
        write_json(folder / f"provenance/records/pretrain.export.{model}.json", content)
        return weights

    def imported(
        self,
        run: str,
        model: str,
        weights: str,
        *,
        step: str = "pretrain.adopt",
        ids: Sequence[str] = (OTHER,),
        source: Path | None = None,
    ) -> Path:
        """Record in a run that a model was read from a folder with these weights; train on if it was imported.

        Returns:
            The file of the weights, outside of the run.
        """
        file = (source or self.results.parent / f"data/{run}-{model}") / "model.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(weights)
        folder = self.results / run
        write_json(folder / "tokens/main/index.json", {"documents": run})
        index = hashlib.sha256((folder / "tokens/main/index.json").read_bytes()).hexdigest()
        inputs = [{"name": "index", "path": "tokens/main/index.json", "sha256": index}]
        inputs += [weights_entry("model", "data:", weights)]
        outputs = [weights_entry("milestone", f"models/{model}/milestones/0", f"{run}.{model}.0")]
        command = ["python", "--input", "model", str(file.with_name("config.json")), str(file)]
        content = record_content(step, instance={"model": model}, inputs=inputs, outputs=outputs, command=command)
        write_json(folder / f"provenance/records/{step}.{model}.json", content)
        if step == "pretrain.adopt":
            documents(folder / "corpus/main/final/s.0.parquet", [*ids])
            shard(folder / "tokens/main/train/0.arrow", [*ids])
            (folder / f"models/{model}/milestones/0").mkdir(parents=True)
            self.trained(folder, model, 8, weights=f"{run}.{model}.0")
        return file

    def run_step(self) -> dict[str, tuple[str, bool, int | None]]:
        """Run the step; return kind, certainty and documents by path."""
        section = RemainsSettings(run="new", corpora={"main": SIGNED}, tokens={"main": "main"}, others={})
        (self.new / "report").mkdir(exist_ok=True)
        remains.run(
            section,
            manifests=sorted(self.new.glob("sources/*/manifest.json")),
            reserved=sorted(self.new.glob("corpus/*/reserved/*")),
            removed=sorted(self.new.glob("corpus/*/removed/*")),
            shards=sorted(self.new.glob("tokens/*/*/*.arrow")),
            remains=self.new / "report/remains.json",
        )
        self.content = json.loads((self.new / "report/remains.json").read_text())
        return {
            place["path"]: (place["kind"], place["certain"], place["documents"]) for place in self.content["places"]
        }


OWN = {"new/corpus/main/filtered": ("texts between steps", True, 1)}


@pytest.fixture
def made(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "results")


def test_own_run_has_only_its_intermediate_copies(made: Runs) -> None:
    made.trained(made.new, "base", 4)
    assert made.run_step() == OWN
    assert made.content["tokens"] == {"main": {"documents": 1, "found": 0}}
    assert made.content["runs"] == ["new"] and made.content["archives"] == 0


def test_record_that_names_a_document_is_not_an_intermediate_text(made: Runs) -> None:
    documents(made.new / "corpus/main/deduplicated/t.0.parquet", [COPY, OTHER])
    old_version = {"new/corpus/main/deduplicated": ("texts between steps", True, 1)}
    assert made.run_step() == OWN | old_version
    named = pq.read_table(made.new / "corpus/main/deduplicated/t.0.parquet", columns=["id"])
    pq.write_table(named, made.new / "corpus/main/deduplicated/t.0.parquet")
    assert made.run_step() == OWN


def test_shard_with_a_forgotten_document_stops_the_step(made: Runs) -> None:
    shard(made.new / "tokens/main/validation/0.arrow", [OTHER, COPY])
    with pytest.raises(InputError, match=r"validation/0\.arrow holds a document that is to be forgotten"):
        made.run_step()


def test_remains_in_an_earlier_run_are_listed_from_corpus_to_model(made: Runs) -> None:
    made.run("old", [GONE, COPY, "s/x.jsonl/2"])
    made.run("older", ["s/x.jsonl/2"])
    assert made.run_step() == OWN | {
        "old/corpus/main/final": ("corpus", True, 2),
        "old/tokens/main": ("tokens", True, 2),
        "old/models/base/milestones/8": ("milestone", True, 2),
        "old/models/base/final": ("model", True, 2),
    }


def test_copy_under_another_name_is_found_by_its_signature_and_traced(made: Runs) -> None:
    old = made.run("old", ["z/a/1", "z/a/2", "z/a/3"])
    (old / "corpus/main/final/s.0.parquet").rename(old / "corpus/main/final/z.0.parquet")
    copies = {"z/a/1": (5, 0), "z/a/2": (1, 7), "z/a/3": (1, 8)}
    signatures(old / "corpus/main/signatures/z.0.parquet", copies)
    assert made.run_step()["old/tokens/main"] == ("tokens", True, 1)
    content = record_content("corpus.signatures", settings=SIGNED.model_dump())
    write_json(old / "provenance/records/corpus.signatures.main.z.0.json", content)
    assert made.run_step()["old/tokens/main"] == ("tokens", True, 2)


def test_domain_is_searched_in_the_source_of_its_list(made: Runs) -> None:
    urls = {"url": ["https://www.weg.nl/1", "https://blijft.nl"]}
    for source in "st":
        documents(made.results / f"old/corpus/main/final/{source}.0.parquet", [f"{source}/8", f"{source}/9"], **urls)
    write_json(made.results / "old/provenance/records/x.json", {})
    assert made.run_step() == OWN | {"old/corpus/main/final": ("corpus", True, 1)}


def test_unsearchable_files_are_suspected(made: Runs) -> None:
    old = made.run("old", [GONE])
    shutil.rmtree(old / "tokens")
    assert made.run_step()["old/models/base/milestones/8"] == ("milestone", False, None)
    shutil.rmtree(old / "corpus")
    assert made.run_step()["old/models/base/final"] == ("model", False, None)
    (old / "corpus/main/final").mkdir(parents=True)
    (old / "corpus/main/final/s.0.parquet").write_bytes(b"PAR1")
    assert made.run_step()["old/corpus/main/final/s.0.parquet"] == ("corpus", False, None)


def test_leftovers_of_the_own_run_are_suspected(made: Runs) -> None:
    milestone = made.trained(made.new, "base", 4)
    (milestone.parent / "2").mkdir()  # of a configuration before
    write_json(made.new / "scratch/base/4/code/recovery/3/state.json", {"identity": "other"})
    private = made.results.parent / "private/new/corpus/main/removed"
    documents(private / "filter.t.0.parquet", [COPY, OTHER])
    documents(made.new / "sources/s/parts/7/00000.parquet", [GONE])
    assert made.run_step() == OWN | {
        "new/sources/s/parts/7": ("raw texts in parts", True, 1),
        "new/models/base/milestones/2": ("milestone", False, None),
        "new/scratch/base/4/code/recovery/3": ("recovery checkpoint", False, None),
        "../private/new/corpus/main/removed": ("private texts", True, 1),
    }


def test_milestone_trained_on_other_tokens_is_suspected(made: Runs) -> None:
    made.trained(made.new, "base", 4)
    write_json(made.new / "tokens/main/index.json", {"documents": "others"})
    assert made.run_step() == OWN | {
        "new/models/base/milestones/4": ("milestone", False, None),
        "new/models/base/final": ("model", False, None),
    }


@pytest.mark.parametrize("is_old", [False, True])
def test_recovery_checkpoint_has_the_status_of_its_training(made: Runs, is_old: bool) -> None:
    folder = made.run("old", [GONE]) if is_old else made.new
    first = made.trained(folder, "base", 4)
    made.trained(folder, "base", 8, first) if not is_old else None
    expected = training_identity(SEGMENT, folder / "tokens/main/index.json", None if is_old else first)
    write_json(folder / "scratch/base/8/code/recovery/6/state.json", {"identity": expected})
    result = made.run_step()
    assert result.get("old/scratch/base/8/code/recovery/6") == (("recovery checkpoint", True, 1) if is_old else None)
    assert is_old or result == OWN


def test_weights_are_followed_by_hash_into_other_runs_and_models(made: Runs) -> None:
    old = made.run("old", [GONE, COPY])
    copy = made.imported("dutch", "d", made.exported(old, "base"))
    made.trained(made.results / "dutch", "cooled", 12, weights="dutch.d.8")  # as `start` does
    made.imported("again", "a", made.exported(made.results / "dutch", "cooled"))
    made.imported("asked", "b", "old.base", step="evaluate.baselines")
    made.imported("other", "base", made.exported(made.run("clean", ["s/x.jsonl/2"]), "base"))
    changed = made.imported("third", "t", "again.a.8")
    changed.write_text("other weights in the same place")
    unfinished = made.results / "dutch/scratch/d/16/code/recovery/9"
    write_json(unfinished / "state.json", {"identity": "of what never finished"})
    places = made.run_step()
    paths = [
        *("dutch/models/d/milestones/0", "dutch/models/d/milestones/8", "dutch/models/d/final"),
        *("dutch/models/cooled/milestones/12", "dutch/models/cooled/final"),
        *("again/models/a/milestones/0", "again/models/a/milestones/8", "again/models/a/final"),
        *("third/models/t/milestones/0", "third/models/t/milestones/8", "third/models/t/final"),
    ]
    assert {path: place for path, place in places.items() if path.split("/")[0] not in ("old", "new")} == {
        **{path: ("model" if path.endswith("final") else "milestone", True, 2) for path in paths},
        **{f"../data/{name}": ("imported model", True, 2) for name in ("dutch-d", "again-a", "asked-b")},
        "dutch/scratch/d/16/code/recovery/9": ("recovery checkpoint", False, None),
    }
    why = {place["path"]: place["why"] for place in made.content["places"]}
    digest = hashlib.sha256(b"old.base").hexdigest()[:16]
    assert why["dutch/models/d/final"].startswith("continues old/models/base/final: ")
    assert why["dutch/models/d/final"].endswith(f"model.safetensors, sha256 {digest}…")
    assert why["dutch/models/cooled/final"].startswith("continues dutch/models/d/milestones/8: ")
    assert why["../data/asked-b"].startswith("holds a copy of the weights of old/models/base/final: ")

    shutil.rmtree(copy.parent)
    shutil.rmtree(old)  # whoever deletes this one first still learns of what continues it
    places = made.run_step()
    assert {path for path in places if path.split("/")[0] != "new"} == {
        *paths,
        *("../data/again-a", "dutch/scratch/d/16/code/recovery/9"),
    }
    assert not any(places[path][1] for path in paths)


def test_verdict_on_weights_depends_on_no_order_and_grows(made: Runs) -> None:
    old = made.run("old", [GONE, COPY])
    clean = made.exported(made.run("clean", ["s/x.jsonl/2"]), "base")
    made.imported("before", "b", clean)  # its name is before that of the run that made its weights
    made.imported("last", "l", "before.b.8")
    made.imported("mixed", "m", clean, ids=[GONE])  # its first milestone saw no token of the run
    made.imported("damaged", "d", made.exported(old, "base"), source=old / "models/base/final")
    for name in ("corpus", "tokens"):
        shutil.rmtree(made.results / "damaged" / name)
    made.imported("after", "a", "damaged.d.8")  # judged first, when the other one is only suspected
    inside = "models/base/milestones/8/huggingface"  # part of a milestone, which is listed
    (old / inside).mkdir()
    (old / inside / "model.safetensors").write_text("old.base.8")
    baseline = record_content("evaluate.baselines", inputs=[weights_entry("model", inside, "old.base.8")])
    write_json(old / "provenance/records/evaluate.baselines.own.json", baseline)
    places = made.run_step()
    expected = {f"{path}/milestones/{step}" for path in ("damaged/models/d", "after/models/a") for step in (0, 8)}
    expected |= {
        "damaged/models/d/final",
        "after/models/a/final",
        "mixed/models/m/milestones/8",
        "mixed/models/m/final",
    }
    assert {path for path in places if path.split("/")[0] not in ("new", "old") and "models" in path} == expected
    assert all(places[path][1] for path in expected)
    assert places["old/models/base/final"] == ("model", True, 2) and "../data/after-a" in places
    assert f"old/{inside}" not in places


def test_own_model_from_weights_of_a_run_with_the_document_is_listed(made: Runs) -> None:
    old = made.run("old", [GONE])
    write_json(made.new / "scratch/n/8/code/recovery/6/state.json", {"identity": "other"})
    made.imported("new", "n", made.exported(old, "base"))
    places = made.run_step()
    assert {path: places[path] for path in places if path.startswith(("new/models", "../"))} == {
        "new/models/n/milestones/0": ("milestone", True, 1),
        "new/models/n/milestones/8": ("milestone", True, 1),
        "new/models/n/final": ("model", True, 1),
        "../data/new-n": ("imported model", True, 1),
    }


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.zst", "zip"])
def test_archives_are_searched(made: Runs, kind: str, tmp_path: Path) -> None:
    kept = made.run("kept", [GONE])
    for name, drop in {"whole": "", "models": "corpus", "clean": "models"}.items():
        folder = shutil.copytree(kept, tmp_path / name)
        if drop:
            shutil.rmtree(folder / drop)
        if name == "clean":
            shutil.rmtree(folder / "tokens")
            documents(folder / "corpus/main/final/s.0.parquet", [OTHER])
        path = made.results / f"{name}.{kind}"
        if kind == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                    archive.write(file, file.relative_to(tmp_path))
        elif kind == "tar.zst":
            with tarfile.open(tmp_path / "x.tar", "w") as tar:
                tar.add(folder, name)
            with pa.output_stream(str(path), compression="zstd") as stream:
                stream.write((tmp_path / "x.tar").read_bytes())
        else:
            with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as tar:
                tar.add(folder, name)
    (made.results / f"broken.{kind}").write_bytes(b"x" * 600)
    shutil.rmtree(kept)
    assert made.run_step() == OWN | {
        f"whole.{kind}": ("archive", True, 1),
        f"models.{kind}": ("archive", False, None),
        f"broken.{kind}": ("archive", False, None),
    }
    assert made.content["archives"] == 4


def test_files_next_to_the_run_are_fingerprinted_without_reading_them(made: Runs) -> None:
    def state() -> dict[str, str]:
        other_runs_fingerprint.hash_other_runs.cache_clear()
        return other_runs_fingerprint.hash_other_runs(made.results, "new")

    assert state() == {}
    old = made.run("old", [GONE])
    first = state()
    assert list(first) == ["old"] and state() == first
    documents(made.new / "corpus/main/final/t.0.parquet", [OTHER])
    assert state() == first
    for begun in (
        old / layout.RECORDS / ".partial-a.7-x.json",
        other_runs_fingerprint.run_private_folder(made.results, "old") / ".partial-a.parquet",
    ):
        begun.parent.mkdir(parents=True, exist_ok=True)
        begun.touch()  # by a job that runs there
    assert state() == first
    (old / layout.RECORDS / "x.y.json").symlink_to("gone")  # listed but missing
    state()
    (old / layout.RECORDS / "x.y.json").unlink()
    file = made.imported("old", "d", "weights")
    imported = state()
    file.unlink()
    assert len({*map(json.dumps, (first, imported, state()))}) == 3
    first = state()
    shutil.rmtree(old / "models/base/final")
    second = state()
    (made.results / "old.tar").write_bytes(b"")
    assert first != second and list(state()) == ["old", "old.tar"]
