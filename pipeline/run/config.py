"""The one typed description of a run; every step receives a part of it.

`load` turns the YAML of a run into a `Config`; what of it a job receives is told by `pipeline.run.step_settings`,
of sources and corpora by `corpus_step_settings`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
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
from pipeline.run.mistakes import sentence
from pipeline.run.platforms import Platform, described
from pipeline.run.renamed import in_new_words
from pipeline.slurm.settings import Slurm
from pipeline.sources.licenses import canonical, is_allowed
from pipeline.sources.settings import Source
from pipeline.sources.units import SourceUnits
from pipeline.tokenizer.settings import Tokenizer
from pipeline.tokens.settings import UNKNOWN, Tokens, bands

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
    def _licenses(self) -> Config:
        """Check that this run allows the licence of every source, but for those whose documents have their own."""
        for source in (source for source in self.sources if source.license_key is None):
            if self.allowed_licenses is not None and not is_allowed(source.license, self.allowed_licenses):
                raise ValueError(
                    f"source {source.name} has the licence {source.license}, which allowed_licenses does not allow "
                    f"({', '.join(self.allowed_licenses) or 'it is empty'}): leave the source out, or allow its licence"
                )
        for name, corpus in self.corpus.items():
            for language, seeds in corpus.quality.items():
                for seed_set in [*seeds.good, *seeds.bad]:
                    if self.allowed_licenses is not None and not is_allowed(seed_set.license, self.allowed_licenses):
                        raise ValueError(
                            f"corpus.{name}.quality.{language}: {seed_set.path} has the licence {seed_set.license}, "
                            "which allowed_licenses does not allow: leave the file out, or allow its licence"
                        )
        return self

    @model_validator(mode="after")
    def _references(self) -> Config:
        """Check that every name that a section refers to exists."""
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(
                f"sources: the name {max(names, key=names.count)!r} stands twice; give each source its own"
            )
        references: list[tuple[str, str, Collection[str]]] = [
            *((f"tokenizer.{n}.corpus", t.corpus, self.corpus) for n, t in self.tokenizer.items()),
            *((f"tokens.{n}.corpus", t.corpus, self.corpus) for n, t in self.tokens.items()),
            *((f"tokens.{n}.tokenizer", t.tokenizer, self.tokenizer) for n, t in self.tokens.items()),
            *((f"models.{n}.tokens", m.tokens, self.tokens) for n, m in self.models.items()),
        ]
        for field, value, section in references:
            if value not in section:
                raise ValueError(f"{field}: there is no {value!r}; choose one of {', '.join(sorted(section))}")
        for name, corpus in self.corpus.items():
            for source in corpus.exclude_sources:
                if source not in names:
                    raise ValueError(f"corpus.{name}.exclude_sources: there is no source {source!r}")
            if not self.corpus_sources(name):
                raise ValueError(f"corpus.{name}.exclude_sources: no source is left; leave one out of the list")
            for source in corpus.deduplication.prefer:
                if source not in names:
                    raise ValueError(f"corpus.{name}.deduplication.prefer: there is no source {source!r}")
            for source in corpus.decontamination.cannot_hold_items:
                if source not in names:
                    raise ValueError(f"corpus.{name}.decontamination.cannot_hold_items: there is no source {source!r}")
            for source_name in self.corpus_sources(name):
                try:
                    corpus.rules_for(self.source(source_name))
                except ValidationError as error:
                    problem = error.errors()[0]
                    key = ".".join(map(str, problem["loc"]))
                    raise ValueError(f"sources.{source_name}.filters: {key}: {problem['msg']}") from None
                except ValueError as error:
                    raise ValueError(f"sources.{source_name}, corpus {name}: {error}") from None
        return self

    @model_validator(mode="after")
    def _vocabularies(self) -> Config:
        """Check that a tokenizer has room for its markers, and that what its sample weighs is in its corpus."""
        for name, section in self.tokenizer.items():
            try:
                section.check_size(self.markers(name))
            except ValueError as error:
                raise ValueError(f"tokenizer.{name}: {error}") from None
            languages = self.corpus[section.corpus].languages
            for language in section.sample_weights:
                if language not in languages:
                    raise ValueError(
                        f"tokenizer.{name}.sample_weights: corpus {section.corpus} has no language {language!r}; "
                        f"choose one of {', '.join(sorted(languages))}"
                    )
        return self

    @model_validator(mode="after")
    def _perplexity(self) -> Config:
        """Check that a corpus is read by a model that exists, whose training does not wait for this corpus."""
        for name in self.scored("perplexity"):
            key, wanted = f"corpus.{name}.perplexity", self.perplexity(name)
            if wanted.model not in self.models:
                models = ", ".join(sorted(self.models)) or "there are none"
                raise ValueError(f"{key}.model: there is no model {wanted.model!r}; choose one of {models}")
            if wanted.tokens > (length := self.models[wanted.model].training.sequence_length):
                raise ValueError(f"{key}.tokens: the sequence_length of models.{wanted.model} is {length}: write less")
            behind, next_ones = set[str](), {name}
            while next_ones:
                corpus = next_ones.pop()
                section = self.corpus[corpus].perplexity
                if section is not None and section.model in self.models:
                    tokens = self.tokens[self.models[section.model].tokens]
                    found = {tokens.corpus, self.tokenizer[tokens.tokenizer].corpus}
                    next_ones |= found - behind
                    behind |= found
            if name in behind:
                raise ValueError(
                    f"{key}.model: {wanted.model} is trained on what corpus {name} is made for: name a model whose "
                    "tokens and tokenizer are of another corpus"
                )
        return self

    @model_validator(mode="after")
    def _strata(self) -> Config:
        """Check that documents have the scores that a token set tells them apart by."""
        for name, section in self.tokens.items():
            for score in ("quality", "perplexity"):
                if section.strata.bounds(score) and not getattr(self.corpus[section.corpus], score):
                    raise ValueError(
                        f"tokens.{name}.strata.{score}: documents of corpus {section.corpus} have none: write "
                        f"corpus.{section.corpus}.{score}, or leave it out here"
                    )
        return self

    @model_validator(mode="after")
    def _sampling(self) -> Config:
        """Check that what a training mixes is in its corpus; the job itself would say so only when its GPUs wait."""
        for name, model in self.models.items():
            corpus = self.tokens[model.tokens].corpus
            known = self._names_in(model.tokens)
            for mixture in (model.training.sampling, *model.training.sampling.phases):
                named = mixture.weights or mixture.epochs
                if named and mixture.by not in known:
                    raise ValueError(
                        f"models.{name}.training.sampling: by {mixture.by} needs tokens.{model.tokens}.strata with "
                        f"{mixture.by}: write it there"
                    )
                for wanted, amount in named.items():
                    if mixture.by == "license":  # documents may have their own, which the job finds
                        continue
                    if amount and wanted not in known[mixture.by]:
                        raise ValueError(
                            f"models.{name}.training.sampling: corpus {corpus} has no {mixture.by} {wanted!r}; choose "
                            f"one of {', '.join(known[mixture.by])}"
                        )
        return self

    def _names_in(self, tokens: str) -> dict[str, list[str]]:
        """Return what a mixture of a token set may name, by the key that it goes by; of licences nothing is known."""
        section = self.tokens[tokens]
        sources = self.corpus_sources(section.corpus)
        known = {"source": sources, "language": sorted(self.corpus[section.corpus].languages)}
        for name in section.strata.names():
            if name == "genre":
                known[name] = sorted({self.source(source).genre or UNKNOWN for source in sources})
            elif name == "license":
                known[name] = []
            else:
                known[name] = [*bands(section.strata.bounds(name)), UNKNOWN]
        return known

    @model_validator(mode="after")
    def _memorization(self) -> Config:
        """Check that a model reads as much as it has to continue."""
        wanted = self.evaluation.memorization
        for name, model in self.models.items():
            if wanted is not None and wanted.tokens > (length := model.training.sequence_length):
                raise ValueError(
                    f"evaluation.memorization: begin-of-text, {wanted.prompt_tokens} tokens of a prompt and "
                    f"{wanted.continuation_tokens} behind it are more than the {length} of models.{name}'s "
                    "sequence_length: make prompt_tokens or continuation_tokens smaller"
                )
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

    @model_validator(mode="after")
    def _categories(self) -> Config:
        """Check that what is told by source names sources of this run."""
        unknown = sorted(self.disclosure.data_categories.keys() - {source.name for source in self.sources})
        if unknown:
            raise ValueError(f"disclosure.data_categories: there is no source {unknown[0]!r}")
        return self

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
