"""Texts in six languages, and the chain of steps from raw files to statistics."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.settings import Settings
from pipeline.corpus import (
    decontaminate,
    deduplicate,
    filter,
    find_duplicates,
    find_items,
    matches,
    ngrams,
    signatures,
    statistics,
)
from pipeline.corpus.classifier.settings import ClassifySettings
from pipeline.corpus.decontamination.settings import ContaminationThresholds, NgramSelection, NgramsSettings
from pipeline.corpus.documents import DOCUMENT_SCHEMA
from pipeline.corpus.settings import (
    Corpus,
    DecontaminateSettings,
    DeduplicateSettings,
    FilterSettings,
    FindDuplicatesSettings,
    SignatureSettings,
    StatisticsSettings,
)
from pipeline.sources import manifest
from pipeline.sources.settings import ManifestSettings, Rights
from tests.conftest import fingerprinted

TEXTS = {
    "nl_water": (
        "Wie in Nederland langs een rivier woont, weet dat het water niet altijd op zijn plaats blijft. In de winter "
        "stijgt het peil, de uiterwaarden lopen onder en de koeien gaan naar stal. De dijkwachten lopen dan hun ronde "
        "met een lamp en een schrift, waarin zij elk nat plekje noteren. Zo ging het honderd jaar geleden en zo gaat "
        "het nog steeds, al meet een sensor tegenwoordig vaak sneller dan een mens kan kijken."
    ),
    "nl_bakker": (
        "De bakker op de hoek begint om drie uur in de nacht. Hij weegt het meel, mengt het met gist en zout, en laat "
        "het deeg rusten terwijl hij koffie zet. Tegen zes uur ruikt de hele straat naar brood. Zijn dochter staat in "
        "de winkel en kent de naam van bijna elke klant die voor acht uur een half bruin komt halen. Op zaterdag is "
        "er krentenbrood, dat meestal voor de middag al is uitverkocht."
    ),
    "nl_fiets": (
        "Een fiets met een slag in het wiel kan men vaak zelf herstellen. Zet het rijwiel op zijn kop, draai het wiel "
        "rond en houd een krijtje naast de velg. Waar het krijtje de velg raakt, moeten de spaken aan de andere kant "
        "een kwartslag strakker. Na een uur is het wiel recht genoeg voor de weg naar school, en wie geduld heeft "
        "krijgt het zo recht dat niemand het verschil met een nieuw wiel nog ziet."
    ),
    "en_lighthouse": (
        "The keeper of the lighthouse wrote a letter every evening, although the boat that carried the post came only "
        "once a month. He told his sister about the birds that rested on the railing, about the fog that swallowed "
        "the lamp, and of the three wrecks that could be seen when the tide was low. She answered in short notes, and "
        "he kept all of them in a tin that had once held biscuits, because paper does not last by the sea."
    ),
    "en_garden": (
        "To grow beans you need a sunny wall, a spade and a little patience. Dig a trench in autumn, fill it with old "
        "leaves and newspaper, and cover that with soil. In May the seeds go in, two to each cane, with their eye "
        "down. When the plants reach the top of the canes, pinch them out so that they spend their strength on pods. "
        "Pick often: a plant that carries ripe seed believes that its work is done and will not flower any more."
    ),
    "af": (
        "Die kinders het die hele oggend by die dam gespeel en toe hulle honger word, het hulle huis toe gestap om "
        "brood en konfyt te eet. Hulle ma het gesê dat hulle nie weer so ver mag loop nie, want die pad is gevaarlik "
        "en daar is nie altyd iemand wat hulle kan help as iets gebeur nie. Die hond het onder die tafel gelê en "
        "gewag vir stukkies brood wat op die vloer sou val."
    ),
    "fy": (
        "De boer hie juster syn kij al op stal set, want it wie sa kâld wurden dat der iis op de sleatten lei. Syn "
        "frou sei dat se it noch nea sa betiid yn it jier meimakke hie, mar de âlde buorman wist fan in winter dat it "
        "al yn oktober begûn te friezen. De bern fûnen it moai en sochten harren redens op, al mochten se fan heit "
        "noch net it iis op."
    ),
    "de": (
        "Der alte Müller ging jeden Morgen an den Bach, um zu sehen, ob genug Wasser floss. In trockenen Sommern "
        "stand das Rad wochenlang still, und die Bauern mussten ihr Korn in das nächste Tal bringen. Dann saß er vor "
        "der Mühle auf der Bank und erzählte den Kindern, wie sein Großvater das Rad aus einer einzigen Eiche gebaut "
        "hatte, die der Sturm umgeworfen hatte."
    ),
}


def json_lines(texts: dict[str, str]) -> bytes:
    """Return documents as JSON lines."""
    lines = [json.dumps({"id": name, "text": text}) for name, text in texts.items()]
    return "".join(f"{line}\n" for line in lines).encode()


@dataclass
class Chain:
    """Run the sources and corpus steps on raw files, one unit for each source."""

    folder: Path
    corpus: Corpus = field(default_factory=Corpus)
    harmful: list[Path] = field(default_factory=list)
    url_lists: list[Path] = field(default_factory=list)
    reading: dict[str, Any] = field(default_factory=dict)
    damaged_share: float = 0.0
    scored: bool = False
    classifiers: dict[str, ClassifySettings] = field(default_factory=dict)
    model: list[Path] = field(default_factory=list)

    def filter(self, source: str, files: dict[str, bytes]) -> dict[str, Any]:
        """Write raw files, make their manifest and filter them; return the counts."""
        raw = self.folder / "raw" / source
        raw.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (raw / name).write_bytes(content)
        paths = [raw / name for name in sorted(files)]
        units = self.folder / f"{source}.units"
        shutil.rmtree(units, ignore_errors=True)
        manifest.run(
            ManifestSettings(
                source=source,
                language="nl",
                license="CC0-1.0",
                rights=Rights(basis="license", holder="someone"),
                units=1,
                license_key=self.reading.get("license_key"),
            ),
            fingerprints=[fingerprinted(self.folder / "hashed" / source, source, {p.name: p for p in paths})],
            entries=[],
            opt_out=[],
            manifest=self.folder / f"{source}.manifest",
            units=units,
        )
        settings = FilterSettings(
            source=source,
            languages=self.corpus.languages,
            normalization=self.corpus.normalization,
            harmful=self.corpus.harmful,
            personal_data=self.corpus.personal_data,
            broken_share=self.corpus.broken_share,
            **self.reading,
            language_model_sha256=self.corpus.language_model and self.corpus.language_model.sha256,
        )
        return filter.run(
            settings,
            unit=units / "0.json",
            files=paths,
            model=self.model,
            harmful=self.harmful,
            url_lists=self.url_lists,
            documents=self.folder / f"{source}.filtered",
            removed=self.folder / f"{source}.filter",
        )

    def deduplicate(self, sources: list[str]) -> dict[str, Any]:
        """Sign, deduplicate and decontaminate the filtered documents; return the deduplication counts."""
        filtered = [self.folder / f"{source}.filtered" for source in sources]
        signed = [self.folder / f"{source}.signatures" for source in sources]
        for documents, directory in zip(filtered, signed, strict=True):
            keys = set(SignatureSettings.model_fields)
            settings = SignatureSettings(**self.corpus.deduplication.model_dump(include=keys))
            signatures.run(settings, documents=documents, signatures=directory)
        duplicates = self.folder / "duplicates"
        shutil.rmtree(duplicates, ignore_errors=True)
        counts = find_duplicates.run(
            FindDuplicatesSettings(deduplication=self.corpus.deduplication),
            signatures=signed,
            documents=filtered,
            reserved=[],
            pairs=[],
            duplicates=duplicates,
        )
        for source, documents in zip(sources, filtered, strict=True):
            deduplicate.run(
                DeduplicateSettings(),
                documents=documents,
                duplicates=duplicates / f"{source}.0.parquet",
                deduplicated=self.folder / f"{source}.deduplicated",
                removed=self.folder / f"{source}.deduplicate",
            )
        self.decontaminate(sources, {})
        return counts

    def refilter(self, source: str) -> None:
        """Use the final documents of a source as its filtered ones."""
        final = pq.read_table(self.folder / f"{source}.final").select(DOCUMENT_SCHEMA.names)
        stored = pq.read_metadata(self.folder / f"{source}.final").metadata[b"polder"]
        pq.write_table(final.replace_schema_metadata({"polder": stored}), self.folder / f"{source}.filtered")

    def decontaminate(self, sources: list[str], tasks: dict[str, bytes]) -> dict[str, dict[str, Any]]:
        """Remove contaminated documents for the given item files; return the counts by source."""
        section = self.corpus.decontamination
        for name, content in tasks.items():
            (self.folder / name).write_bytes(content)
        entries = [{"task": name.split(".")[0], "name": name} for name in tasks]
        ngrams.run(
            NgramsSettings.model_validate(
                {"items": entries, **section.model_dump(include=set(NgramSelection.model_fields))},
            ),
            files=[self.folder / name for name in tasks],
            ngrams=self.folder / "ngrams",
        )
        for source in sources:
            matches.run(
                Settings(),
                documents=self.folder / f"{source}.filtered",
                deduplicated=self.folder / f"{source}.deduplicated",
                ngrams=self.folder / "ngrams",
                matches=self.folder / f"{source}.matches",
            )
        shutil.rmtree(self.folder / "contaminated", ignore_errors=True)
        find_items.run(
            ContaminationThresholds(**section.model_dump(include=set(ContaminationThresholds.model_fields))),
            ngrams=self.folder / "ngrams",
            matches=[self.folder / f"{source}.matches" for source in sources],
            hits=self.folder / "contaminated",
            contamination=self.folder / "contamination.json",
        )
        return {
            source: decontaminate.run(
                DecontaminateSettings(classifiers=[*self.classifiers]),
                documents=self.folder / f"{source}.filtered",
                deduplicated=self.folder / f"{source}.deduplicated",
                hits=self.folder / "contaminated" / f"{source}.0.parquet",
                final=self.folder / f"{source}.final",
                removed=self.folder / f"{source}.decontaminate",
                scores=[self.folder / f"{source}.scores"] * self.scored
                + [self.folder / f"{source}.{name}" for name in self.classifiers],
            )
            for source in sources
        }

    def statistics(self, sources: list[str]) -> dict[str, Any]:
        """Count the corpus."""
        common = {"license": "CC0-1.0", "language": "nl", "damaged_share": self.damaged_share}
        described = [{"name": source, **common} for source in sources]
        statistics.run(
            StatisticsSettings.model_validate(
                {
                    "corpus": "main",
                    "sources": described,
                    "classifiers": self.classifiers,
                    "language_model": self.model[0].name if self.model else None,
                    "minimum_scores": {code: [rules.minimum_score] for code, rules in self.corpus.languages.items()},
                }
            ),
            filtered=[self.folder / f"{source}.filtered" for source in sources],
            deduplicated=[self.folder / f"{source}.deduplicated" for source in sources],
            removed=[self.folder / f"{source}.{stage}" for source in sources for stage in statistics.STEPS],
            contamination=self.folder / "contamination.json",
            final=[self.folder / f"{source}.final" for source in sources],
            statistics=self.folder / "statistics.json",
        )
        content: dict[str, Any] = json.loads((self.folder / "statistics.json").read_text())
        return content

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a Parquet file."""
        rows: list[dict[str, Any]] = pq.read_table(self.folder / name).to_pylist()
        return rows


@pytest.fixture
def texts() -> dict[str, str]:
    """Return one text of ordinary prose by name."""
    return dict(TEXTS)


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """Return the steps, in an empty folder."""
    return Chain(tmp_path)


@pytest.fixture
def new_chain(tmp_path: Path) -> Callable[..., Chain]:
    """Return a function that makes chains, each in a folder of its own."""
    made: list[Chain] = []

    def make(corpus: Corpus | None = None, harmful: list[Path] | None = None) -> Chain:
        folder = tmp_path / f"chain-{len(made)}"
        folder.mkdir()
        made.append(Chain(folder, corpus or Corpus(), harmful or []))
        return made[-1]

    return make


@pytest.fixture
def as_json_lines() -> Callable[[dict[str, str]], bytes]:
    """Return the function that writes documents as JSON lines."""
    return json_lines


@pytest.fixture
def gzipped() -> Callable[[bytes], bytes]:
    """Return gzip without a time in its header."""
    return lambda content: gzip.compress(content, mtime=0)


# With one thread fastText initializes only the first tenth of its table: words come first, and with many (unused)
# buckets of word pairs behind them all words are in it. The uninitialized rest is read as zeros, because the
# allocation is large and the process new.
TRAIN = """
import json, sys, fasttext
options = {"thread": 1, "verbose": 0, "wordNgrams": 2, "bucket": 50000}
trained = fasttext.train_supervised(sys.argv[1], **options, **json.loads(sys.argv[3]))
trained.save_model(sys.argv[2])
print(json.dumps([trained.predict(line.split(" ", 1)[1])[0][0] for line in open(sys.argv[1]).read().splitlines()]))
"""


def train_classifier(path: Path, lines: list[str], **options: Any) -> Path:
    """Train a fastText classifier on lines that begin with their label, and save it.

    On so few lines training sometimes gives a model that knows nothing: then repeat it.
    """
    raw = path.with_suffix(".txt")
    raw.write_text("\n".join(lines))
    labels = [line.split(" ", 1)[0] for line in lines]
    for seed in range(20):
        command = [sys.executable, "-c", TRAIN, str(raw), str(path), json.dumps({**options, "seed": seed})]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0 and json.loads(done.stdout.splitlines()[-1]) == labels:
            return path
    raise AssertionError(f"fastText did not train: {done.stderr}")


@pytest.fixture(scope="session")
def classifier() -> Callable[..., Path]:
    return train_classifier
