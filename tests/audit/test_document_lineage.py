"""The lineage of a document: kept or removed, with reason, value, threshold and location."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.audit.document_lineage import trace_document
from pipeline.cli.entry_point import main
from pipeline.core import output_archives
from pipeline.core.errors import InputError
from pipeline.core.output_archives import OutputArchives
from pipeline.corpus.documents import id_hash, is_validation_cluster, write_removed
from pipeline.corpus.settings import Corpus, FindDuplicatesSettings
from tests.corpus.conftest import TEXTS, Chain, json_lines

SHORT = (
    "Wie deze regels leest, ziet dat er een begin en een einde is, maar dat het verhaal daartussen veel te kort is "
    "gebleven voor een echte tekst over water en wind."
)
BAD = "Dit is een korte zin. " * 30


def record(stage: str, instance: dict[str, str], settings: dict[str, Any], inputs: list[str]) -> dict[str, Any]:
    return {
        "step": stage,
        "instance": instance,
        "settings": settings,
        "command": [],
        "inputs": [{"name": "documents", "path": path, "sha256": "", "bytes": 0} for path in inputs],
        "outputs": [],
        "code_version": "",
        "environment_version": "",
        "frozen": {"path": "provenance/frozen/1.json", "sha256": ""},
        "started": "",
        "ended": "",
        "wall_seconds": 0,
        "cpu_seconds": 0,
        "peak_memory_bytes": 0,
        "energy": {"joules": 0, "measured": False, "meters": []},
    }


def place_files(chain: Chain) -> Path:
    """Copy the files of one source to their places in a run; return its folder."""
    run = chain.folder / "run"
    for place, name in {
        "filtered/s.0.parquet": "s.filtered",
        "deduplicated/s.0.parquet": "s.deduplicated",
        "duplicates/s.0.parquet": "duplicates/s.0.parquet",
        "final/s.0.parquet": "s.final",
        "contaminated/s.0.parquet": "contaminated/s.0.parquet",
        **{f"removed/{stage}.s.0.parquet": f"s.{stage}" for stage in ("filter", "deduplicate", "decontaminate")},
    }.items():
        (run / "corpus/main" / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(chain.folder / name, run / "corpus/main" / place)
    (run / "sources/s").mkdir(parents=True)
    shutil.copy(chain.folder / "s.manifest", run / "sources/s/manifest.json")
    return run


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one source: the kept and removed documents of each stage in the layout of the rules, with records."""
    harmful = {"word_lists": [{"name": "spade", "path": "s.txt", "remove": True}]}
    written_corpus = {
        "preset": "standard",
        "harmful": harmful,
        "broken_share": 0.5,
        "languages": {"nl": {"quality": {"minimum_words": 40}}, "en": {}},
    }
    corpus = Corpus.model_validate(written_corpus)
    words = tmp_path_factory.mktemp("lists") / "s.txt"
    words.write_text("spade\n")
    chain = Chain(tmp_path_factory.mktemp("chain"), corpus, [words])
    made = {**TEXTS, "copy": TEXTS["nl_water"], "bad": BAD, "short": SHORT}
    made |= {f"{cut}_less": TEXTS["en_lighthouse"][:-cut] for cut in (20, 110)}
    chain.filter("s", {"x.jsonl": json_lines(made) + b"{broken\n"})
    chain.deduplicate(["s"])
    chain.decontaminate(["s"], {"bread.jsonl": json.dumps({"q": TEXTS["nl_bakker"][:80]}).encode()})
    run = place_files(chain)
    unit = {"corpus": "main", "source": "s", "unit": "0"}
    filtered = {"languages": corpus.model_dump()["languages"], "harmful": corpus.harmful.model_dump()}
    written = [
        record("corpus.filter", unit, json.loads(json.dumps(filtered)), []),
        record("corpus.find_items", {"corpus": "main"}, {"minimum_overlap": 0.0}, []),
        record(
            "corpus.find_duplicates",
            {"corpus": "main"},
            FindDuplicatesSettings(deduplication=corpus.deduplication).model_dump(),
            [],
        ),
    ]
    for shard in range(2):
        settings = {"shard": shard, "shards": 2, "validation_fraction": 0.5}
        inputs = ["corpus/main/final/s.0.parquet"]
        written.append(record("tokens.shard", {"tokens": "main", "shard": str(shard)}, settings, inputs))
    for folder in ("records", "frozen"):
        (run / "provenance" / folder).mkdir(parents=True)
    configuration = {"sources": [{"name": "s"}], "corpus": {"main": corpus.model_dump(mode="json", exclude_unset=True)}}
    (run / "provenance/frozen/1.json").write_text(json.dumps({"configuration": configuration}))
    for content in written:
        name = ".".join([content["step"], *content["instance"].values()])
        (run / f"provenance/records/{name}.json").write_text(json.dumps(content))
    return run


def test_lineage_of_a_kept_document_ends_at_its_shard(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "s/x.jsonl/nl_fiets"
    assert main(["corpus", "lineage", str(run_directory), name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"document {name}", "source s: license CC0-1.0, basis: license, holder: someone"]
    assert lines[2].startswith("file x.jsonl (") and lines[2].endswith("unit 0")
    shard, split = id_hash(name) >> 63, "validation" if is_validation_cluster(name, 0.5) else "train"
    assert lines[3:] == [
        "corpus main",
        "  filter: kept (nl 1.0000)",
        "    masked: not known of this document, for the settings in its record are of another version; "
        "in all of unit 0: not recorded",
        "  deduplicate: kept",
        "  decontaminate: kept",
        f"  tokens main: {split}, shard {shard}",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "af",
            [
                "filter: removed, language, value af 1.00",
                "0.689 (languages.nl.minimum_score, from the preset standard)",
            ],
        ),
        (
            "bad",
            [
                "filter: removed, top_2_gram, value 0.",
                "    The share of characters in all occurrences of the commonest n-gram is 0.",
                "; the largest is 0.213 (languages.nl.repetition.top_n_grams.2, from the preset standard).",
            ],
        ),
        (
            "short",
            [
                "filter: removed, too_few_words, value 31",
                "    The number of words that are not punctuation is 31; the least is 40 "
                "(languages.nl.quality.minimum_words, written in the configuration).",
            ],
        ),
        ("en_garden", ["harmful, value spade: 1 hits", "1 (harmful.word_lists.spade.minimum_hits, a default)."]),
        ("14", ["filter: removed, broken_json, value line 14"]),
        (
            "nl_water",
            [
                "deduplicate: removed, exact_duplicate",
                "    Its text equals that of the kept document s/x.jsonl/copy.",
            ],
        ),
        (
            "20_less",
            [
                "deduplicate: removed, near_duplicate, value s/x.jsonl/en_lighthouse",
                "    it has 93.6% of the different 5-grams of both in common with s/x.jsonl/en_lighthouse: "
                "the least is 71.9%",
            ],
        ),
        (
            "110_less",
            [
                "deduplicate: kept\n    in the cluster of s/x.jsonl/en_lighthouse, and not like what is kept before it",
                "tokens main: train, shard 0",  # same as its cluster; its own id would put it into validation
            ],
        ),
        ("copy", ["deduplicate: kept (best of 2 copies)", "s/x.jsonl/nl_water", "decontaminate: kept"]),
        (
            "nl_bakker",
            [
                "decontaminate: removed, contaminated, value bread: 1",
                "bread, item 1: ",
                "the least share of the item's n-grams is 0.0 (minimum_overlap, a default).",
            ],
        ),
    ],
)
def test_lineage_of_a_removal_shows_value_and_threshold(run_directory: Path, name: str, words: list[str]) -> None:
    story = "\n".join(trace_document(run_directory, f"s/x.jsonl/{name}"))
    assert all(word in story for word in words), story
    assert "no value" not in story


def test_lineage_lists_removed_documents_with_step_reason_and_value(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["corpus", "removed", str(run_directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {}
    for file in (run_directory / "corpus/main/removed").iterdir():
        for row in pq.read_table(file).to_pylist():
            value = "" if row["value"] is None else f", value {row['value']}"
            rows[row["id"]] = f"corpus main, {file.name.split('.')[0]}: {row['reason']}{value}"
    assert [line.split("\t")[0] for line in lines] == sorted(rows) and "s/x.jsonl/short" in rows
    assert lines == [f"{name}\t{rows[name]}" for name in sorted(rows)] and any(", value " in line for line in lines)
    assert main(["corpus", "removed", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path} has no corpus yet: its filters have not run\n"
    (tmp_path / "corpus/main/removed").mkdir(parents=True)
    for step in ("deduplicate", "filter"):
        write_removed(tmp_path / f"corpus/main/removed/{step}.s.0.parquet", [], {})
    assert main(["corpus", "removed", str(tmp_path)]) == 0
    shown = f"No corpus in {tmp_path} removed a document (steps that have run: filter, deduplicate).\n"
    assert capsys.readouterr().out == shown


def test_removed_documents_are_listed_from_files_and_archives(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(run_directory, tmp_path / "run")
    assert main(["corpus", "removed", str(run)]) == 0
    from_files = capsys.readouterr().out
    removed = run / "corpus/main/removed/filter.s.0.parquet"
    with mock.patch.object(output_archives, "FEWEST_FILES", 1):
        OutputArchives(run, "corpus/main").add("corpus.filter.main.s.0", [removed])
    assert not removed.exists() and main(["corpus", "removed", str(run)]) == 0
    assert capsys.readouterr().out == from_files


def test_unknown_document_id_error_suggests_similar_ids(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"read a document s/x\.jsonl/nl_watr: did you mean s/x\.jsonl/nl_water"):
        trace_document(run_directory, "s/x.jsonl/nl_watr")
    assert trace_document(run_directory, "nl_water") == trace_document(run_directory, "s/x.jsonl/nl_water")
    with pytest.raises(InputError, match=r"there is no source 'water' "):
        trace_document(run_directory, "water")
    with pytest.raises(InputError, match=r"there is no source 'q' .* choose one of s$"):
        trace_document(run_directory, "q/x.jsonl/nl_water")
    assert main(["corpus", "lineage", str(run_directory / "none"), "s/x/1"]) == 2
    assert "holds no records" in capsys.readouterr().err


def test_lineage_of_a_copy_of_a_reserved_document_names_entry_and_list(tmp_path: Path) -> None:
    run = tmp_path / "run"
    made = {
        "filter.s": [{"id": "s/x/1", "reason": "opt_out", "value": "domain weg.nl"}],
        "filter.t": [],
        "deduplicate.t": [{"id": "t/y/1", "reason": "opt_out", "value": "s/x/1"}],
    }
    (run / "corpus/main/removed").mkdir(parents=True)
    for name, rows in made.items():
        stage, source = name.split(".")
        common = {"source": source, "stage": stage, "bytes": 1}
        write_removed(run / f"corpus/main/removed/{name}.0.parquet", [common | row for row in rows], {})
    (run / "corpus/main/filtered").mkdir()
    kept = {"id": ["t/y/1"], "language": ["nl"], "language_score": [1.0]}
    pq.write_table(pa.table(kept), run / "corpus/main/filtered/t.0.parquet")
    for source, opt_out in (("s", {"date": "2026-01-01", "sha256": "abc"}), ("t", None)):
        described = {"source": {"license": "MIT"}, "units": {}, "opt_out": opt_out}
        (run / f"sources/{source}").mkdir(parents=True)
        (run / f"sources/{source}/manifest.json").write_text(json.dumps(described))
    (run / "provenance/records").mkdir(parents=True)
    content = record("corpus.find_duplicates", {"corpus": "main"}, {}, [])
    (run / "provenance/records/corpus.find_duplicates.main.json").write_text(json.dumps(content))
    listed = "    on the opt-out list of s (of 2026-01-01, sha256 abc)"
    assert trace_document(run, "t/y/1")[2:] == [
        "corpus main",
        "  filter: kept (nl 1.0000)",
        "  deduplicate: removed, opt_out, value s/x/1",
        "    It is a copy of a reserved document: s/x/1.",
        "    a copy of s/x/1, which is reserved, domain weg.nl",
        listed,
    ]
    with pytest.raises(InputError, match=r"2 documents in .* have the id 1: write the full id, such as s/x/1 or t/y/1"):
        trace_document(run, "1")
    assert trace_document(run, "y/1") == trace_document(run, "t/y/1")
    assert trace_document(run, "s/x/1")[3:] == [
        "  filter: removed, opt_out, value domain weg.nl",
        "    Its rights holder opted out: domain weg.nl.",
        listed,
    ]


def test_lineage_shows_document_license_and_damaged_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "sources/s").mkdir(parents=True)
    files = [{"name": name, "bytes": 9, "sha256": "abc"} for name in ("x.jsonl", "y.jsonl.gz")]
    described = {"source": {"license": "MIT", "license_key": "l"}, "units": {"0": {"files": files}}}
    (run / "sources/s/manifest.json").write_text(json.dumps(described))
    (run / "corpus/main/filtered").mkdir(parents=True)
    kept = {"id": ["s/x.jsonl/1", "s/x.jsonl/2"], "license": ["CC0-1.0", "MIT"]}
    kept |= {"language": ["nl"] * 2, "language_score": [1.0] * 2}
    pq.write_table(pa.table(kept), run / "corpus/main/filtered/s.0.parquet")
    (run / "provenance/records").mkdir(parents=True)
    content = record("corpus.filter", {"corpus": "main", "source": "s", "unit": "0"}, {}, [])
    content["counts"] = {"quarantined": [{"file": "y.jsonl.gz", "bytes": 9, "damage": "truncated", "value": None}]}
    (run / "provenance/records/corpus.filter.main.s.0.json").write_text(json.dumps(content))
    lineage = trace_document(run, "s/x.jsonl/1")
    assert lineage[1] == "source s: license MIT (of a document: what it says itself, in l)"
    assert "  filter: kept (nl 1.0000; license CC0-1.0)" in lineage
    assert "  filter: kept (nl 1.0000)" in trace_document(run, "s/x.jsonl/2")
    damage = "  filter: nothing of its file is used, for it cannot be read whole: truncated"
    assert trace_document(run, "s/y.jsonl.gz/7")[-1] == damage
    with pytest.raises(InputError, match=r"no corpus in .* read a document"):
        trace_document(run, "s/x.jsonl/7")


def test_lineage_lists_removed_paragraphs_lines_and_passages(tmp_path: Path) -> None:
    keys = {"paragraphs": True, "paragraph_characters": 60, "passage_words": 20, "line_characters": 30}
    corpus = {"deduplication": {**keys, "line_documents": 2, "minhash": False}}
    chain = Chain(tmp_path, Corpus.model_validate(corpus))
    paragraph = "Overname van deze tekst is toegestaan, mits met een duidelijke bronvermelding."
    notice = "Op deze pagina worden cookies gebruikt."
    water = TEXTS["nl_water"]
    made = {
        "1": f"{water}\n\n{paragraph}",
        "2": f"{TEXTS['nl_bakker']}\n{notice}",
        "3": f"Één keer: {water} Zo was het.\n{notice}\n{TEXTS['nl_fiets']}\n\n{paragraph.upper()}",
    }
    chain.filter("s", {"x.jsonl": json_lines(made)})
    chain.deduplicate(["s"])
    run = place_files(chain)
    (run / "provenance/records").mkdir(parents=True)
    written = json.dumps(record("corpus.find_items", {"corpus": "main"}, {}, []))
    (run / "provenance/records/corpus.find_items.main.json").write_text(written)
    lines = {name: [line for line in trace_document(run, f"s/x.jsonl/{name}") if "without" in line] for name in "123"}
    assert lines["1"] == []
    start = len(f"{TEXTS['nl_bakker']}\n")
    assert lines["2"] == [
        f"    without bytes {start} to {start + len(notice)} of its filtered text: boilerplate_lines, "
        f"kept in s/x.jsonl/3: {notice}"
    ]
    assert lines["3"][0] == "    without its paragraphs 2: duplicate_paragraphs"
    assert lines["3"][1].startswith("    without bytes 12 to ")
    assert lines["3"][1].endswith(f": repeated_passages, kept in s/x.jsonl/1: {water[:60]}…")
    assert lines["3"][2].endswith(f": boilerplate_lines, kept in s/x.jsonl/1: {paragraph.upper()[:60]}…"), "a line too"
