"""A damaged file is quarantined completely and named, other files are unaffected, and every byte is counted."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.corpus.raw_file_quarantine import sum_unit_reports
from pipeline.corpus.settings import Corpus
from pipeline.sources import split
from pipeline.sources.decompression import DamagedFile
from pipeline.sources.settings import SplitSettings
from pipeline.sources.source_units import count_raw_bytes, read_part
from pipeline.workflow.steps import step_settings
from tests.sources.test_web_pages import archive

pytestmark = pytest.mark.slow

QUARANTINE = {"quarantine": True}


def parquet(texts: list[str]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), stream, compression="none")
    return stream.getvalue()


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


def lines(*texts: str) -> bytes:
    return "".join(f"{json.dumps({'text': text})}\n" for text in texts).encode()


PROSE = lines("een twee drie vier " * 50)
# By kind: file name, content, reported damage.
DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "gzip without an end": ("k.jsonl.gz", gzip.compress(PROSE, mtime=0)[:-6], "truncated"),
    "gzip with a changed byte": ("k.jsonl.gz", flipped(gzip.compress(PROSE, mtime=0), 40), "damaged"),
    "no gzip": ("k.jsonl.gz", PROSE, "damaged"),
    "an empty archive": ("k.jsonl.gz", b"", "truncated"),
    "members and a bad head": ("k.jsonl.gz", gzip.compress(PROSE) + b"x" + gzip.compress(PROSE)[1:] * 99, "damaged"),
    "zstd without an end": ("k.jsonl.zst", zstandard.compress(PROSE * 99)[:-3], "truncated"),
    "bzip2 without an end": ("k.txt.bz2", bz2.compress(PROSE)[:-6], "truncated"),
    "xz with a changed byte": ("k.jsonl.xz", flipped(lzma.compress(PROSE), 60), "damaged"),
    "parquet without an end": ("k.parquet", parquet(["een"])[:-3], "damaged"),
    "parquet without a page": ("k.parquet", flipped(parquet(["een" * 99] * 9), 4), "damaged"),
    "a record of WARC without an end": ("k.warc", archive(compressed=False)[:-9000], "truncated"),
    "no WARC": ("k.warc.gz", gzip.compress(b"geen archief"), "damaged"),
    "a wrong encoding": ("k.jsonl", PROSE.decode().encode("utf-16"), "broken_records"),
    "another wrong encoding": ("k.txt", ("één " * 99).encode("latin-1"), "broken_records"),
    "a page instead of the file": ("k.jsonl", b"<html>\n<body>Not found\n", "broken_records"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_does_not_affect_other_files(new_chain: Any, texts: dict[str, str], kind: str) -> None:
    name, content, damage = DAMAGED[kind]
    good = {"a.jsonl": lines(texts["nl_water"], texts["af"]), "z.jsonl.gz": gzip.compress(lines(texts["en_garden"]))}
    whole, chain = new_chain(), new_chain()
    whole.filter("s", good)
    chain.reading = QUARANTINE
    counts = chain.filter("s", {**good, name: content})
    for output in ("filtered", "filter"):
        assert whole.rows(f"s.{output}") == chain.rows(f"s.{output}")
    (left_out,) = counts["quarantined"]
    assert (left_out["file"], left_out["bytes"], left_out["damage"]) == (name, len(content), damage)
    assert counts["read_bytes"] == sum(map(len, good.values())) == counts["raw_bytes"] - len(content)
    assert counts["documents_in"] == counts["documents_out"] + sum(counts["removed"].values()) == 3
    strict = new_chain()
    with pytest.raises(InputError):
        strict.filter("s", {**good, name: content})
    assert not (strict.folder / "s.filtered").exists()


@pytest.mark.slow
def test_decompression_bomb_is_quarantined(new_chain: Any, texts: dict[str, str]) -> None:
    chain = new_chain()
    chain.reading = QUARANTINE
    bomb = lzma.compress(bytes(150_000_000), preset=0)
    counts = chain.filter("s", {"a.jsonl": lines(texts["nl_water"]), "k.txt.xz": bomb})
    assert [(one["file"], one["damage"]) for one in counts["quarantined"]] == [("k.txt.xz", "decompression_bomb")]
    assert counts["documents_out"] == 1


def test_few_broken_records_do_not_quarantine_a_file(new_chain: Any, texts: dict[str, str]) -> None:
    chain = new_chain(Corpus(broken_share=0.5))
    chain.reading = QUARANTINE
    counts = chain.filter("s", {"a.jsonl": lines(texts["nl_water"], texts["en_garden"]), "k.txt": b"\xe9\xe9n"})
    assert counts["quarantined"] == [] and counts["removed"] == {"invalid_utf8": 1}
    counts = chain.filter("t", {"a.jsonl": lines(texts["nl_water"]), "b.jsonl": b"{\n[", "k.txt": b"\xe9\xe9n"})
    assert [(one["file"], one["value"]) for one in counts["quarantined"]] == [
        ("b.jsonl", "2 of 2 records, first 1 (broken_json)"),
        ("k.txt", "1 of 1 records, first 1 (invalid_utf8)"),
    ]
    some = lines(texts["nl_water"], texts["en_garden"], texts["nl_fiets"]) + b"{\n"
    counts = chain.filter("u", {"a.jsonl": some, "b.jsonl": b"{\n" * 9})
    assert [one["file"] for one in counts["quarantined"]] == ["b.jsonl"] and counts["removed"] == {"broken_json": 1}


def test_source_with_only_damaged_files_makes_valid_outputs(chain: Any) -> None:
    chain.reading = QUARANTINE
    counts = chain.filter("s", {"a.jsonl.gz": b"geen", "b.parquet": b"iets"})
    assert counts["documents_in"] == 0 and chain.rows("s.filtered") == chain.rows("s.filter") == []
    chain.deduplicate(["s"])
    refused = r"source s: 100\.00% of its 8 bytes are in damaged files, a\.jsonl\.gz \(damaged\), b\.parquet \(damaged"
    with pytest.raises(InputError, match=refused):
        chain.statistics(["s"])


KINDS = st.lists(st.sampled_from(["good", "short", "copy", *DAMAGED]), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KINDS)
def test_kept_and_removed_add_up_to_the_input(new_chain: Any, texts: dict[str, str], kinds: list[str]) -> None:
    chain = new_chain()
    chain.reading, chain.damaged_share = QUARANTINE, 1.0
    files = {"first.jsonl": lines(texts["nl_fiets"])}
    good = {"good": lines(texts["nl_water"], texts["en_garden"]), "short": lines("Te kort."), "copy": lines("x", "y")}
    for number, kind in enumerate(kinds):
        name, content, _ = DAMAGED.get(kind, ("k.jsonl", good.get(kind, b""), ""))
        files[f"{number}-{name}"] = content
    damaged = {f"{n}-{DAMAGED[kind][0]}": len(DAMAGED[kind][1]) for n, kind in enumerate(kinds) if kind in DAMAGED}
    counts = chain.filter("s", files)
    assert {one["file"]: one["bytes"] for one in counts["quarantined"]} == damaged
    assert counts["raw_bytes"] == sum(map(len, files.values())) == counts["read_bytes"] + sum(damaged.values())
    expected = 1 + sum({"good": 2, "short": 1, "copy": 2}.get(kind, 0) for kind in kinds)
    assert counts["documents_in"] == expected == len(chain.rows("s.filtered")) + len(chain.rows("s.filter"))
    chain.deduplicate(["s"])
    statistics = chain.statistics(["s"])
    source = statistics["sources"]["s"]
    assert {row["file"]: row["bytes"] for row in source["quarantined"]} == damaged
    for part in (source, statistics["totals"]):
        assert part["raw_bytes"] == part["read_bytes"] + part["quarantined_bytes"]
        assert part["quarantined_bytes"] == sum(damaged.values())


def test_damaged_share_covers_all_units_of_a_source(new_chain: Any, texts: dict[str, str]) -> None:
    chain = new_chain()
    chain.reading = QUARANTINE
    content = lines(texts["nl_water"])
    chain.filter("s", {"a.jsonl": content, "b.jsonl.gz": b"x" * (len(content) // 9)})
    share = (len(content) // 9) / (len(content) + len(content) // 9)
    chain.deduplicate(["s"])
    for given_share, refused in ((share, False), (share * 0.999, True), (0.0, True), (1.0, False)):
        chain.damaged_share = given_share
        if refused:
            with pytest.raises(InputError, match=r"b\.jsonl\.gz \(damaged\): fetch or repair the files, or raise"):
                chain.statistics(["s"])
        else:
            chain.statistics(["s"])
    row = {"file": "f", "bytes": 10, "damage": "truncated", "value": None}
    parts = [{"raw_bytes": 50, "read_bytes": 40, "quarantined": [row]}] * 2
    assert sum_unit_reports(parts)["quarantined"] == [{**row, "bytes": 20}]


def test_no_part_of_a_large_damaged_file_is_used(tmp_path: Path, new_chain: Any) -> None:
    content = gzip.compress(bytes(range(256)) * 40, mtime=0, compresslevel=0)[:-5]
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    split_settings = {"source": "s", "file_name": "x.jsonl.gz", "unit_bytes": 4096, "document_bytes": 999}
    with pytest.raises(DamagedFile, match=r"x\.jsonl\.gz is truncated"):
        split.run(SplitSettings(**split_settings, parts=3), file=tmp_path / "x.jsonl.gz", parts=tmp_path / "strict")
    counts = split.run(
        SplitSettings(**split_settings, parts=3, quarantine=True),
        file=tmp_path / "x.jsonl.gz",
        parts=tmp_path / "parts",
    )
    assert counts == {"parts": 3, "documents": 0, "bytes": 0, "damage": "truncated"}
    parts = sorted((tmp_path / "parts").iterdir())
    assert [count_raw_bytes(part) for part in parts] == [4096, 4096, len(content) - 8192]
    for part in parts:
        with pytest.raises(DamagedFile) as caught:
            list(read_part(part))
        assert caught.value.damage == "truncated"


def test_undamaged_parts_cover_the_whole_file(tmp_path: Path) -> None:
    content = "".join(f'{{"text": "regel {number}"}}\n' for number in range(400)).encode()
    (tmp_path / "x.jsonl").write_bytes(content)
    split_settings = SplitSettings(
        source="s", file_name="x.jsonl", parts=3, unit_bytes=4096, document_bytes=999, quarantine=True
    )
    split.run(split_settings, file=tmp_path / "x.jsonl", parts=tmp_path / "parts")
    parts = sorted((tmp_path / "parts").iterdir())
    assert sum(map(count_raw_bytes, parts)) == len(content)
    assert sum(len(list(read_part(part))) for part in parts) == 400


@pytest.mark.parametrize(("share", "quarantine"), [(None, True), (0.0, False), (0.2, True)])
def test_source_sets_its_own_damage_limits(share: float | None, quarantine: bool) -> None:
    source: dict[str, Any] = {"name": "s", "path": "config/corpus/nl_gids.jsonl", "language": "nl", "license": "MIT"}
    source["rights"] = {"basis": "license", "holder": "iemand"}
    source |= {} if share is None else {"damaged_share": share}
    config = parse_configuration({"run": {"name": "r"}, "sources": [source]})
    place = {"corpus": "main", "source": "s", "unit": "0"}

    def read(step: str) -> Any:
        return step_settings(config, step, place)

    assert read("corpus.filter").quarantine is quarantine is read("opt_out.reserved").quarantine
    assert read("opt_out.reserved").broken_share == read("corpus.filter").broken_share
    assert [one.damaged_share for one in read("corpus.statistics").sources] == [0.01 if share is None else share]
