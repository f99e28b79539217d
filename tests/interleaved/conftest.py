"""Archives of pages and images, and the steps that make interleaved documents of them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from pipeline.core.hashing import hash_file
from pipeline.interleaved import assemble, extract
from pipeline.interleaved.settings import AssembleSettings, ExtractSettings, InterleavedRules, ListedFile
from pipeline.sources import manifest
from pipeline.sources.settings import ManifestSettings, Rights
from tests.conftest import fingerprinted

PARAGRAPHS = [
    "De molenaar loopt elke ochtend naar de dijk, en hij kijkt of het water hoger staat dan het gisteren stond.",
    "Zijn dochter schrijft de stand van het water in een schrift, dat al dertig jaar op dezelfde plank ligt.",
    "Als het hard waait blijven de wieken staan, want dan is de oude as van de molen niet meer te vertrouwen.",
    "In het dorp vertellen ze dat de molen ouder is dan de kerk, maar er is niemand die dat nu nog kan bewijzen.",
    "Op zondag komt de bakker met zijn kar langs de molen, en hij koopt het meel dat er van de week is gemalen.",
    "Van de zomer stond de rivier zo laag, dat de kinderen er met de fiets door konden en niemand natte voeten kreeg.",
]
OTHERS = [
    "Toen de koster het orgel in de kerk wilde stemmen, vond hij in een van de pijpen het nest van een muis.",
    "Wie met de trein naar de stad gaat, ziet links van het spoor een huis met een blauwe deur en een oude pomp.",
    "De smid heeft drie zonen, en van hen is er maar een die het vak van zijn vader heeft willen leren.",
    "Het was al laat in de avond, en toch brandde er nog licht achter het raam van de dokter.",
    "Op de markt kocht zij een mand met appels, die zij onder de kinderen van de buurt heeft verdeeld.",
    "In de winter van dat jaar lag er zo veel sneeuw, dat de post een week lang niet bij ons kon komen.",
    "De kapitein schreef aan zijn vrouw dat het schip voor de storm uit was gevlucht naar een vreemde haven.",
    "Er stond een stoel te veel aan de tafel, maar niemand vroeg voor wie die daar was neergezet.",
    "Als je de beuk achter de school in het voorjaar ziet, zou je niet denken dat hij zo oud is.",
    "Hij had beloofd om voor het eten thuis te zijn, en hij kwam pas toen de borden al in de kast stonden.",
    "Met een stuk krijt tekende het meisje op de stoep een kaart van het eiland waar zij wilde wonen.",
    "Na de preek bleef de dominee nog even staan, omdat hij wilde weten wie er zo had gehoest.",
]
"""Paragraphs of which each is used once."""


def picture(color: str, width: int = 400, height: int = 300, form: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), color).save(stream, form)
    return stream.getvalue()


@dataclass
class Resource:
    """A page or an image of an archive."""

    url: str
    content: bytes | str
    media_type: str = "text/html; charset=utf-8"
    date: str = "2024-03-01T10:00:00Z"
    headers: list[tuple[str, str]] = field(default_factory=list)


def page(*parts: str, head: str = "") -> str:
    """Return a page of paragraphs and, for each part that begins with `<`, of HTML."""
    body = "".join(part if part.startswith("<") else f"<p>{part}</p>" for part in parts)
    return f"<html><head><title>Titel</title>{head}</head><body>{body}</body></html>"


def archive(*resources: Resource) -> bytes:
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=True)
    for number, one in enumerate(resources):
        content = one.content.encode() if isinstance(one.content, str) else one.content
        record = writer.create_warc_record(
            one.url,
            "response",
            payload=io.BytesIO(content),
            http_headers=StatusAndHeaders("200 OK", [("Content-Type", one.media_type), *one.headers], "HTTP/1.1"),
            warc_headers_dict={"WARC-Date": one.date, "WARC-Record-ID": f"<urn:uuid:{number}>"},
        )
        writer.write_record(record)
    return stream.getvalue()


@dataclass
class Steps:
    """Runs the steps on archives, one unit for each source.

    Attributes:
        rules: of the set.
        lists: files by kind and language.
        settings: further settings of interleaved.extract.
    """

    folder: Path
    rules: InterleavedRules = field(default_factory=InterleavedRules)
    lists: dict[tuple[str, str], Path] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    opt_out: dict[str, Any] | None = None
    damaged_share: float = 0.0

    def listed(self) -> list[ListedFile]:
        return [
            ListedFile(kind=kind, language=language, sha256=hash_file(path))
            for (kind, language), path in self.lists.items()
        ]

    def extract(self, files: dict[str, bytes], source: str = "web") -> dict[str, Any]:
        """Write raw files and make documents of them; return the counts."""
        raw = self.folder / "raw" / source
        raw.mkdir(parents=True)
        for name, content in files.items():
            (raw / name).write_bytes(content)
        paths = {name: raw / name for name in sorted(files)}
        rights = Rights(basis="license", holder="someone")
        manifest.run(
            ManifestSettings(source=source, language="nl", license="CC0-1.0", rights=rights, units=1),
            fingerprints=[fingerprinted(self.folder / "hashed" / source, source, paths)],
            entries=[],
            opt_out=[],
            manifest=self.folder / f"{source}.manifest",
            units=self.folder / f"{source}.units",
        )
        unit = self.folder / f"{source}.units/0.json"
        if self.opt_out is not None:
            unit.write_text(json.dumps(json.loads(unit.read_text()) | {"opt_out": self.opt_out}))
        (self.folder / "extracted").mkdir(exist_ok=True)
        settings = {"languages": ["nl", "en"], "broken_share": 0.5, **self.settings}
        return extract.run(
            ExtractSettings(source=source, rules=self.rules, lists=self.listed(), **settings),
            unit=unit,
            files=[*paths.values()],
            lists=[*self.lists.values()],
            documents=self.folder / f"extracted/{source}.0.parquet",
            removed=self.folder / f"{source}.removed",
        )

    def extracted(self, source: str = "web") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.folder / f"extracted/{source}.0.parquet").to_pylist()
        return rows

    def removed(self, source: str = "web") -> dict[str, str]:
        """Return the reason for which each removed page was removed, by the end of its id."""
        rows = pq.read_table(self.folder / f"{source}.removed").to_pylist()
        return {row["id"].rpartition("/")[2]: row["reason"] for row in rows}

    def assemble(self) -> dict[str, Any]:
        """Assemble the documents of all sources; return the counts."""
        rights = {"basis": "license", "holder": "someone"}
        sources = [{"name": "web", "license": "CC0-1.0", "rights": rights, "damaged_share": self.damaged_share}]
        settings = {"run": "test", "name": "pages", "languages": ["nl", "en", "fy"], "sources": sources}
        return assemble.run(
            AssembleSettings.model_validate(settings | {"rules": self.rules, "lists": self.listed()}),
            extracted=sorted((self.folder / "extracted").iterdir(), reverse=True),
            documents=self.folder / "documents",
            removed=self.folder / "removed.parquet",
            statistics=self.folder / "statistics.json",
            card=self.folder / "README.md",
        )

    def documents(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / "documents").iterdir())
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def assembled_removed(self) -> dict[str, str]:
        rows = pq.read_table(self.folder / "removed.parquet").to_pylist()
        return {row["id"].rpartition("/")[2]: row["reason"] for row in rows}


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)
