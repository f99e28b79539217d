"""The proof counts the documents before, searches the corpus after, and stops at the first match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.errors import InputError
from pipeline.corpus.documents import FINAL_SCHEMA, DocumentWriter, id_hash, write_removed
from pipeline.corpus.duplicates.signature_files import SignatureWriter
from pipeline.corpus.settings import SignatureSettings
from pipeline.opt_out import forgotten
from pipeline.opt_out.settings import ForgottenSettings

SIGNED = SignatureSettings(bands=2)
LISTED: dict[str, Any] = {
    "date": "2026-01-01",
    "sha256": "0" * 64,
    "domains": ["weg.nl", "leeg.nl"],
    "ids": ["1", "9"],
    "holders": [],
}


class Corpus:
    """A source with a list and one without, of which a copy of the reserved document was removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.listed = LISTED
        self.entries = {"id 1": 1, "domain weg.nl": 1}
        self.left_out = ["s/x/1"]
        self.final = {"s": {"s/x/2": "https://blijft.nl/weg.nl"}, "t": {"t/y/2": "https://weg.nl", "t/y/3": None}}
        self.keys = {"s/x/2": (2, 0), "t/y/1": (1, 8), "t/y/2": (3, 9), "t/y/3": (4, 0)}

    def signatures(self, name: str, ids: list[str], **metadata: Any) -> Path:
        writer = SignatureWriter(self.folder / name, SIGNED, {"source": name[0], "unit": 0})
        writer.metadata |= metadata
        for document in ids:
            content, band = {"s/x/1": (1, 7), **self.keys}[document]
            keys = {
                "characters": 3,
                "ngrams": 1,
                "content_0": content,
                "content_1": 0,
                "bucket_000": band,
                "bucket_001": 0,
            }
            writer.add({"id": document, **keys})
        writer.close()
        return self.folder / name

    def removed(self, source: str, stage: str, rows: dict[str, tuple[str, str]]) -> Path:
        path = self.folder / f"{stage}.{source}"
        made = [
            {"id": name, "source": source, "stage": stage, "reason": reason, "value": value, "bytes": 5}
            for name, (reason, value) in rows.items()
        ]
        write_removed(path, made, {"source": source, "unit": 0, "stage": stage})
        return path

    def documents(self, source: str) -> Path:
        path = self.folder / f"{source}.final"
        rows = [
            {
                **dict.fromkeys(FINAL_SCHEMA.names),
                **{"id": name, "text": "tekst", "language": "nl", "language_score": 1.0, "source": source, "url": url},
                **{"license": "MIT", "flags": [], "cluster": name, "cluster_size": 1, "id_hash": id_hash(name)},
            }
            for name, url in self.final[source].items()
        ]
        with DocumentWriter(path, FINAL_SCHEMA) as writer:
            writer.metadata |= {"source": source, "unit": 0}
            writer.write(pa.Table.from_pylist(rows, FINAL_SCHEMA))
        return path

    def prove(self) -> dict[str, Any]:
        """Run the step on the files and return its output."""
        rights = {"source": {"name": "s", "rights": {"holder": "De Krant"}}, "opt_out": self.listed}
        (self.folder / "manifest.json").write_text(json.dumps(rights))
        forgotten.run(
            ForgottenSettings(corpus="main", signatures=SIGNED),
            manifests=[self.folder / "manifest.json"],
            reserved=[self.signatures("s.reserved", ["s/x/1"], documents=1, bytes=5, entries=self.entries)],
            removed=[
                self.removed("s", "filter", {name: ("opt_out", "id 1") for name in self.left_out}),
                self.removed("t", "filter", {"t/y/0": ("language", "de")}),
                self.removed("s", "deduplicate", {}),
                self.removed("t", "deduplicate", {"t/y/1": ("opt_out", "s/x/1"), "t/y/4": ("near_duplicate", "x")}),
            ],
            signatures=[self.signatures("s.signed", ["s/x/2"]), self.signatures("t.signed", [*self.keys][1:])],
            final=[self.documents(source) for source in "ts"],
            forgotten=self.folder / "forgotten.json",
        )
        content: dict[str, Any] = json.loads((self.folder / "forgotten.json").read_text())
        return content


@pytest.fixture
def made(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path / "corpus")


def test_removed_documents_are_counted_and_remaining_ones_searched(made: Corpus) -> None:
    assert made.prove() == {
        "corpus": "main",
        "sources": {
            "s": {
                "date": "2026-01-01",
                "sha256": "0" * 64,
                "entries": {"domains": 2, "ids": 2, "holders": 0},
                "entries_without_documents": {"domains": ["leeg.nl"], "ids": ["9"], "holders": []},
                "documents": 1,
                "bytes": 5,
                "copies": {"t": 1},
            }
        },
        "before": {"documents": 1, "copies": 1},
        "after": {"documents": 0, "copies": 0},
        "searched": {"documents": 3, "bytes": 15, "units": 2},
    }


def test_hosts_and_documents_are_counted_by_reservation_file(made: Corpus) -> None:
    files = ("robots.txt", "robots.txt", "ai.txt")
    hosts = [{"host": f"{n}.nl", "file": file} for n, file in enumerate(files)]
    made.listed = {**LISTED, "reservations": [*hosts, hosts[2]]}  # a host may have two places of a file
    made.entries = {"robots.txt 0.nl: *": 1, "robots.txt 0.nl: GPTBot": 2, "id 1": 1}
    assert made.prove()["sources"]["s"]["reservations"] == {
        "ai.txt": {"hosts": 1, "documents": 0},
        "robots.txt": {"hosts": 2, "documents": 3},
    }


def test_remaining_document_stops_the_step_with_its_id(made: Corpus) -> None:
    def stops(sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            made.prove()

    made.keys["t/y/3"] = (4, 7)
    stops(r"t/y/3 is a copy of a reserved document and is in .*t\.final: delete that unit's records")
    made.keys["t/y/3"] = (1, 0)
    stops(r"t/y/3 is a copy of a reserved document")
    made.keys["t/y/3"] = (4, 0)
    made.final["t"]["t/y/1"] = None
    stops(r"t/y/1 is on the list, or was removed as a copy")
    del made.final["t"]["t/y/1"]
    made.final["s"]["s/x/2"] = "https://www.weg.nl"
    stops(r"s/x/2 is of a domain on the list")
    made.final["s"]["s/x/2"] = None
    made.listed = {**LISTED, "holders": ["De Krant"]}
    stops(r"s/x/2 is of a holder on the list")
    made.listed = LISTED
    assert made.prove()["searched"]["documents"] == 3


def test_inconsistent_counts_and_unsigned_documents_are_named(made: Corpus) -> None:
    made.left_out = []
    with pytest.raises(InputError, match=r"source s: 1 documents are reserved, the filter removed 0"):
        made.prove()
    made.left_out = ["s/x/1"]
    made.final["t"]["t/y/5"] = None
    with pytest.raises(InputError, match=r"t\.signed does not sign all documents of .*t\.final"):
        made.prove()
