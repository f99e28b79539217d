"""The one typed description of a run; every step receives a part of it.

`load` turns the YAML of a run into a `Config`; what of it a job receives is told by `pipeline.run.step_settings`,
of sources and corpora by `corpus_step_settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from pipeline.corpus.quality_settings import Perplexity
from pipeline.corpus.settings import Corpus
from pipeline.energy.settings import Energy
from pipeline.evaluate.settings import UNTRAINED, Evaluation, Suite
from pipeline.ground.errors import InputError
from pipeline.ground.hashing import sha256_of
from pipeline.ground.settings import Settings
from pipeline.pretrain.settings import Model
from pipeline.provenance.settings import Provenance
from pipeline.report.disclosure import Disclosure
from pipeline.report.settings import Report
from pipeline.run.agreement import check
from pipeline.run.mistakes import sentence
from pipeline.run.platforms import Platform, described
from pipeline.run.renamed import in_new_words
from pipeline.slurm.settings import Slurm
from pipeline.sources.licenses import canonical
from pipeline.sources.settings import Source
from pipeline.sources.units import SourceUnits
from pipeline.tokenizer.settings import Tokenizer
from pipeline.tokens.settings import Tokens

NAME = r"^[a-z0-9][a-z0-9_-]*$"
Name = Annotated[str, Field(pattern=NAME)]


class Run(Settings):
    """The run itself."""

    name: str = Field(pattern=NAME)
    seed: int = Field(default=42, ge=0)
    results: str = Field(default="results", description="a folder; letters, digits and ._+-/ alone")
    environment: Literal["cpu", "cuda", "rocm"] = "cpu"
    provider: str | None = None
    provider_url: str | None = Field(default=None, pattern=r"^https?://\S+$", description="the provider's page")
    contact: str | None = None

    @field_validator("results")
    @classmethod
    def _plain(cls, results: str) -> str:
        """The folder stands in command lines and in rules, where other characters have a meaning."""
        if not re.fullmatch(r"[\w./+-]+", results):
            raise ValueError(f"{results!r} has other characters than letters, digits and ._+-/: choose another folder")
        return results


class Config(Settings):
    """One run: sources, corpora, tokenizers, token sets, models, evaluation, energy, report, Slurm."""

    run: Run
    data: str | None = Field(default=None, description="a folder that `{data}` in the paths below stands for")
    platform: Platform = Platform()
    sources: list[Source] = Field(min_length=1)
    allowed_licenses: list[str] | None = Field(default=None, description="SPDX; none allows what the sources declare")
    corpus: dict[Name, Corpus] = {"main": Corpus()}
    tokenizer: dict[Name, Tokenizer] = {"main": Tokenizer()}
    tokens: dict[Name, Tokens] = {"main": Tokens()}
    models: dict[Name, Model] = {}
    evaluation: Evaluation = Evaluation()
    energy: Energy = Energy()
    provenance: Provenance = Provenance()
    report: Report = Report()
    disclosure: Disclosure = Disclosure()
    slurm: Slurm = Slurm()

    _units: dict[str, SourceUnits] = PrivateAttr(default_factory=dict)

    @field_validator("allowed_licenses")
    @classmethod
    def _spdx(cls, licenses: list[str] | None) -> list[str] | None:
        return licenses and sorted({canonical(license) for license in licenses})

    @field_validator("tokenizer")
    @classmethod
    def _swept(cls, tokenizers: dict[str, Tokenizer]) -> dict[str, Tokenizer]:
        """Make the tokenizers of each sweep ordinary ones of the run."""
        found: dict[str, Tokenizer] = {}
        for name, section in tokenizers.items():
            try:
                expanded = section.expanded(name)
            except ValidationError as error:
                raise ValueError(f"{name}.sweep: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
            for other in expanded.keys() & (found.keys() | tokenizers.keys() - {name}):
                raise ValueError(f"{name}.sweep: there is another tokenizer {other}: give one of them another name")
            found |= expanded
        return found

    @model_validator(mode="after")
    def _agree(self) -> Config:
        check(self)
        return self

    @property
    def directory(self) -> Path:
        """Return the folder of this run's results."""
        return Path(self.run.results) / self.run.name

    @property
    def emissions(self) -> Energy:
        """Return PUE and carbon intensity: those of the section energy, else the platform's."""
        return self.platform.emissions(self.energy)

    def source(self, name: str) -> Source:
        """Return the source of that name."""
        return next(source for source in self.sources if source.name == name)

    def model_seed(self, name: str) -> int:
        """Return what a model's first weights and the order of its sequences are drawn by."""
        own = self.models[name].seed
        return self.run.seed if own is None else own

    def markers(self, tokenizer: str) -> list[str]:
        """Return what stands for personal data in the corpora that a tokenizer is of, sorted."""
        corpora = {t.corpus for t in self.tokens.values() if t.tokenizer == tokenizer}
        corpora.add(self.tokenizer[tokenizer].corpus)
        return sorted({marker for name in corpora for marker in self.corpus[name].personal_data.markers()})

    def parallel_files(self, tokenizer: str) -> list[str]:
        """Return the files of the sentences that a tokenizer's parity is measured on, in the order of the languages."""
        files = sorted(self.tokenizer[tokenizer].parallel.items())
        return [self.resolved(f"tokenizer.{tokenizer}.parallel", path) for _, path in files]

    def searched_models(self) -> list[str]:
        """Return the models in whose training documents texts can be found."""
        return [name for name, model in self.models.items() if self.tokens[model.tokens].suffixes]

    def corpus_sources(self, name: str) -> list[str]:
        """Return the names of the sources that a corpus is made from, sorted."""
        return sorted(source.name for source in self.sources if source.name not in self.corpus[name].exclude_sources)

    def source_units(self, source: str) -> SourceUnits:
        """Return the files and units of a source, listed once."""
        if source not in self._units:
            parts = self.directory / "sources" / source / "parts"
            self._units[source] = SourceUnits(self.source(source), self.data, parts)
        return self._units[source]

    def files(self, source: str) -> dict[str, Path]:
        """Return the raw files of a source, name to path."""
        return self.source_units(source).files

    def resolved(self, what: str, path: str) -> str:
        """Return the path of something with the folder of the data in it."""
        if "{data}" in path:
            if self.data is None:
                raise InputError(f"{what}: its path {path} needs the folder: add --config data=FOLDER")
            path = path.replace("{data}", self.data)
        return path

    def units(self, source: str) -> dict[str, dict[str, Path]]:
        """Return the units of a source that have files, each with its files, name to path."""
        return self.source_units(source).units

    def batches(self, source: str) -> dict[str, list[str]]:
        """Return the units of a source that one job works on, by the number of the batch."""
        return self.source_units(source).batches

    def scored(self, score: Literal["quality", "perplexity"]) -> list[str]:
        """Return the corpora whose documents get this score."""
        return [name for name, section in self.corpus.items() if getattr(section, score)]

    def perplexity(self, corpus: str) -> Perplexity:
        """Return by which model a corpus is read, of one that `scored` names."""
        section = self.corpus[corpus].perplexity
        if section is None:
            raise ValueError(f"no model reads corpus {corpus}")
        return section

    def reserving(self) -> list[str]:
        """Return the sources that have an opt-out list, sorted."""
        return sorted(source.name for source in self.sources if source.opt_out)

    def evaluated(self) -> list[tuple[str, int]]:
        """Return (model, step) of every milestone that is evaluated."""
        first = -1 if self.evaluation.checkpoints == "final" else 0
        return [(name, step) for name, model in self.models.items() for step in model.training.milestones()[first:]]

    def baselines(self) -> dict[str, str | None]:
        """Return the models that evaluated ones are compared with: a model's name, or None where a folder holds it."""
        if not self.evaluated():
            return {}
        untrained = self.models if self.evaluation.untrained else {}
        return {f"{UNTRAINED}-{name}": name for name in untrained} | dict.fromkeys(self.evaluation.baselines)

    def baseline_files(self, baseline: str) -> list[str]:
        """Return the files of a baseline that a folder holds.

        Raises:
            InputError: it is no folder of a model in the layout of Hugging Face, or its weights are no safetensors.
        """
        folder = Path(self.resolved("evaluation.baselines", self.evaluation.baselines[baseline]))
        files = [*folder.glob("[!.]*")] if folder.is_dir() else []
        names = [file.name for file in files]
        if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
            raise InputError(
                f"evaluation.baselines.{baseline}: {folder} needs config.json, a tokenizer and *.safetensors; "
                "name a folder of a model in the layout of Hugging Face"
            )
        return sorted(str(file) for file in files if file.is_file())

    def baseline_bytes(self, baseline: str) -> int:
        """Return how large the files of a baseline are."""
        return sum(Path(file).stat().st_size for file in self.baseline_files(baseline))

    def suites(self) -> list[Suite]:
        """Return the evaluation's suites with their folders resolved."""
        return self.evaluation.resolved(self.data)

    def harmful_files(self, corpus: str) -> list[Path]:
        """Return the files of a corpus's word lists and classifiers, in their order.

        Raises:
            InputError: a file is missing.
        """
        paths = []
        for entry in self.corpus[corpus].harmful.entries():
            path = Path(entry.path.replace("{data}", self.data or "{data}"))
            if not path.is_file():
                raise InputError(f"corpus.{corpus}.harmful: there is no file {path}, which {entry.name} names")
            paths.append(path)
        return paths

    def seed_files(self, corpus: str) -> list[Path]:
        """Return the files that a corpus's classifiers are trained on, by language, the good ones first.

        Raises:
            InputError: a file is missing.
        """
        found = []
        for language, seeds in sorted(self.corpus[corpus].quality.items()):
            for seed_set in [*seeds.good, *seeds.bad]:
                path = Path(self.resolved(f"corpus.{corpus}.quality.{language}", seed_set.path))
                if not path.is_file():
                    raise InputError(f"corpus.{corpus}.quality.{language}: there is no file {path}: correct its path")
                found.append(path)
        return found

    def harmful_files_of_model(self, model: str) -> list[Path]:
        """Return the same of the corpus that a model is trained on, where what it writes is looked at."""
        corpus = self.tokens[self.models[model].tokens].corpus
        return self.harmful_files(corpus) if self.evaluation.memorization else []

    def license_evidence(self) -> dict[str, str]:
        """Return the sha256 of each file that shows the licence of a source.

        Raises:
            InputError: there is no such source, or no such file.
        """
        found = {}
        for source, name in sorted(self.disclosure.license_evidence.items()):
            path = Path(self.resolved("disclosure.license_evidence", name))
            if source not in [known.name for known in self.sources]:
                raise InputError(f"disclosure.license_evidence: there is no source {source!r}")
            if not path.is_file():
                raise InputError(f"disclosure.license_evidence.{source}: there is no file {path}")
            found[source] = sha256_of(path)
        return found

    def written(self) -> dict[str, Any]:
        """Return what was written to describe this run: `load` makes the same run of it, defaults included.

        What is Slurm's alone changes no result and is left out, and where this machine keeps its key.
        """
        keys = self.model_dump(mode="json", exclude_unset=True, exclude={"data", "platform", "slurm", "provenance"})
        return {**keys, "platform": self.platform.name}


def load(raw: Mapping[str, Any]) -> Config:
    """Return the validated configuration; `platform` is the name of a file in workflow/platforms.

    Raises:
        InputError: with one sentence that names the key and suggests the nearest known one.
    """
    content, _ = in_new_words(raw)
    try:
        return Config.model_validate({**content, "platform": described(str(raw.get("platform", "local")))})
    except ValidationError as error:
        raise InputError(sentence(error, Config, "configuration")) from None
