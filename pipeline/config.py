"""The one typed description of a run; every step receives a part of it.

`load` turns the YAML of a run into a `Config`; `Config.step_settings` gives exactly the keys that a step reads, which
are the parameters that decide whether it runs again.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, PrivateAttr, ValidationError, field_validator, model_validator

from pipeline.corpus.contamination_settings import DecontaminateSettings, NgramsSettings
from pipeline.corpus.model_files import fingerprint
from pipeline.corpus.presets import for_source
from pipeline.corpus.publish_settings import PublishedSource, PublishSettings
from pipeline.corpus.settings import (
    Corpus,
    DeduplicateSettings,
    FilterSettings,
    FinaliseSettings,
    PersonalData,
    SignaturesSettings,
    StatisticsSettings,
)
from pipeline.energy.settings import Energy
from pipeline.errors import InputError
from pipeline.evaluate.settings import Evaluation, Suite, SuiteSettings, SuitesSettings
from pipeline.evaluate.task_files import suite_items
from pipeline.plan.settings import EstimateSettings
from pipeline.pretrain.settings import ExportSettings, Model, SegmentSettings
from pipeline.provenance.settings import CrateSettings
from pipeline.report.settings import PageSettings
from pipeline.settings import Settings
from pipeline.sources.licenses import canonical, is_allowed
from pipeline.sources.settings import DatasetSettings, FingerprintSettings, ManifestSettings, Source, SplitSettings
from pipeline.sources.units import SourceUnits
from pipeline.tokenizer.settings import FertilitySettings, Tokenizer, TrainSettings
from pipeline.tokens.settings import IndexSettings, ShardSettings, Tokens

PLATFORMS = Path(__file__).parents[1] / "workflow" / "platforms"
NAME = r"^[a-z0-9][a-z0-9_-]*$"


class Run(Settings):
    """The run itself."""

    name: str = Field(pattern=NAME)
    seed: int = Field(default=42, ge=0)
    results: str = "results"
    environment: Literal["cpu", "cuda", "rocm"] = "cpu"
    provider: str | None = None
    contact: str | None = None


class Platform(Settings):
    """The machine that the plan is made for; the file workflow/platforms/NAME.yaml."""

    name: str = "local"
    devices: int = Field(default=1, ge=1)
    peak_flops_per_second: float | None = None
    device_power_watts: float | None = None
    memory_bytes_per_device: int | None = None
    model_flops_utilization: float | None = None


class Config(Settings):
    """One run: sources, corpora, tokenizers, token sets, models, evaluation, energy."""

    run: Run
    data: str | None = Field(default=None, description="a folder that `{data}` in the paths below stands for")
    platform: Platform = Platform()
    sources: list[Source] = Field(min_length=1)
    allowed_licenses: list[str] | None = Field(default=None, description="SPDX; none allows what the sources declare")
    corpus: dict[str, Corpus] = {"main": Corpus()}
    tokenizer: dict[str, Tokenizer] = {"main": Tokenizer()}
    tokens: dict[str, Tokens] = {"main": Tokens()}
    models: dict[str, Model] = {}
    evaluation: Evaluation = Evaluation()
    energy: Energy = Energy()

    _units: dict[str, SourceUnits] = PrivateAttr(default_factory=dict)

    @field_validator("allowed_licenses")
    @classmethod
    def _spdx(cls, licenses: list[str] | None) -> list[str] | None:
        return licenses and sorted({canonical(license) for license in licenses})

    @model_validator(mode="after")
    def _licenses(self) -> Config:
        """Check that every source has a licence that this run allows."""
        for source in self.sources:
            if self.allowed_licenses is not None and not is_allowed(source.license, self.allowed_licenses):
                raise ValueError(
                    f"source {source.name} has the licence {source.license}, which allowed_licenses does not allow "
                    f"({', '.join(self.allowed_licenses) or 'it is empty'}): leave the source out, or allow its licence"
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
            for source in corpus.deduplication.prefer:
                if source not in names:
                    raise ValueError(f"corpus.{name}.deduplication.prefer: there is no source {source!r}")
            for source_name in self.corpus_sources(name):
                try:
                    for_source(corpus.languages, self.source(source_name).filters)
                except ValidationError as error:
                    problem = error.errors()[0]
                    key = ".".join(map(str, problem["loc"]))
                    raise ValueError(f"sources.{source_name}.filters: {key}: {problem['msg']}") from None
                except ValueError as error:
                    raise ValueError(f"sources.{source_name}.filters, corpus {name}: {error}") from None
        return self

    @property
    def directory(self) -> Path:
        """Return the folder of this run's results."""
        return Path(self.run.results) / self.run.name

    def source(self, name: str) -> Source:
        """Return the source of that name."""
        return next(source for source in self.sources if source.name == name)

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

    def items(self, corpus: str) -> list[tuple[str, Path]]:
        """Return (task, file) of the evaluation items that a corpus must not contain; none where that is off."""
        if not self.corpus[corpus].decontamination.enabled:
            return []
        return sorted({item for suite in self.suites() for item in suite_items(suite)})

    def written(self) -> dict[str, Any]:
        """Return what was written to describe this run: `load` makes the same run of it, defaults included."""
        keys = self.model_dump(mode="json", exclude_unset=True, exclude={"data", "platform"})
        return {**keys, "platform": self.platform.name}

    def step_settings(self, stage: str, instance: Mapping[str, str]) -> BaseModel:
        """Return the settings of one job: exactly the keys that its step reads."""
        return _STEPS[stage](self, instance)


StepSettings = Callable[[Config, Mapping[str, str]], BaseModel]


def _fingerprint(config: Config, i: Mapping[str, str]) -> BaseModel:
    names = list(config.units(i["source"])[i["unit"]])
    return FingerprintSettings(source=i["source"], unit=int(i["unit"]), names=names)


def _split(config: Config, i: Mapping[str, str]) -> BaseModel:
    name, parts = config.source_units(i["source"]).large_files[i["file"]]
    source = config.source(i["source"])
    return SplitSettings(source=source.name, file_name=name, parts=parts, **_shared(SplitSettings, source))


def _dataset(config: Config, i: Mapping[str, str]) -> BaseModel:
    source = config.source(i["source"])
    return DatasetSettings(source=source.name, **_shared(DatasetSettings, source))


def _manifest(config: Config, i: Mapping[str, str]) -> BaseModel:
    source = config.source(i["source"])
    keys = ManifestSettings.model_fields.keys() & Source.model_fields.keys()
    return ManifestSettings(source=source.name, **{key: getattr(source, key) for key in sorted(keys)})


def _filter(config: Config, i: Mapping[str, str]) -> BaseModel:
    source, section = config.source(i["source"]), config.corpus[i["corpus"]]
    shared = _shared(FilterSettings, source, section)
    shared |= {
        "languages": for_source(section.languages, source.filters),
        "personal_data": _with_hash(section.personal_data),
    }
    return FilterSettings(
        source=source.name,
        unit=int(i["unit"]),
        names=list(config.units(source.name)[i["unit"]]),
        is_part=config.source_units(source.name).parts_of(i["unit"]) is not None,
        language_model_sha256=section.language_model and section.language_model.sha256,
        harmful_sha256=[_sha256(path, path.stat().st_mtime_ns) for path in config.harmful_files(i["corpus"])],
        samples=_may_sample(source, section),
        **shared | {"harmful": section.harmful.named()},
    )


def _with_hash(kinds: PersonalData) -> PersonalData:
    """Return the settings with the hash of the model of names, so that another model is another setting."""
    if kinds.names is None or kinds.names_sha256 is not None:
        return kinds
    return kinds.model_copy(update={"names_sha256": fingerprint(kinds.names)})


@cache
def _sha256(path: Path, changed_nanoseconds: int) -> str:
    """Return the sha256 of a file, read once as long as it does not change: every unit of a corpus asks for it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _may_sample(source: Source, section: Corpus) -> bool:
    """Return whether samples of the removed documents of a source are kept and shown."""
    free = source.rights.basis == "public-domain" or source.license in section.sample_licenses
    return section.keep_removed and free


def _finalise(config: Config, i: Mapping[str, str]) -> BaseModel:
    section = config.corpus[i["corpus"]]
    samples = _may_sample(config.source(i["source"]), section)
    return FinaliseSettings(keep_removed=section.keep_removed, samples=samples)


def _shared(settings: type[Settings], *sections: Settings) -> dict[str, Any]:
    """Return those values of the sections that the step's settings have a key for."""
    return {
        key: getattr(section, key)
        for section in sections
        for key in sorted(type(section).model_fields.keys() & settings.model_fields.keys())
        if key not in ("source", "corpus", "tokenizer", "tokens")
    }


def _ngrams(config: Config, i: Mapping[str, str]) -> BaseModel:
    section = config.corpus[i["corpus"]].decontamination
    items = [{"task": task, "name": path.name} for task, path in config.items(i["corpus"])]
    return NgramsSettings.model_validate({"items": items, **_shared(NgramsSettings, section)})


def _statistics(config: Config, i: Mapping[str, str]) -> BaseModel:
    described = [
        {"name": source.name, "license": source.license, "language": source.language}
        for name in config.corpus_sources(i["corpus"])
        if (source := config.source(name))
    ]
    return StatisticsSettings.model_validate({"corpus": i["corpus"], "sources": described})


def _publish(config: Config, i: Mapping[str, str]) -> BaseModel:
    section = config.corpus[i["corpus"]]
    return PublishSettings(
        run=config.run.name,
        corpus=i["corpus"],
        provider=config.run.provider,
        contact=config.run.contact,
        keep_removed=section.keep_removed,
        filters=section.model_dump(mode="json", include={"languages", "deduplication"}),
        sources=[
            PublishedSource(**_shared(PublishedSource, config.source(name)))
            for name in config.corpus_sources(i["corpus"])
        ],
    )


def _tokenizer(settings: type[TrainSettings] | type[FertilitySettings]) -> StepSettings:
    """The held-out share is that of the token sets, so that a tokenizer never trains on validation text."""

    def build(config: Config, i: Mapping[str, str]) -> BaseModel:
        users = [t.validation_fraction for t in config.tokens.values() if t.tokenizer == i["tokenizer"]]
        fraction = max(users, default=Tokens().validation_fraction)
        return settings(validation_fraction=fraction, **_shared(settings, config.tokenizer[i["tokenizer"]]))

    return build


def _shard(config: Config, i: Mapping[str, str]) -> BaseModel:
    section = config.tokens[i["tokens"]]
    return ShardSettings(shard=int(i["shard"]), **_shared(ShardSettings, section))


def _estimate(config: Config, i: Mapping[str, str]) -> BaseModel:
    models = {
        name: {
            "architecture": model.architecture,
            "training": model.training,
            "vocabulary_size": config.tokenizer[config.tokens[model.tokens].tokenizer].vocabulary_size,
        }
        for name, model in config.models.items()
    }
    return EstimateSettings.model_validate(
        {"models": models, "platform": config.platform.model_dump(), "energy": config.energy.model_dump()}
    )


def _segment(config: Config, i: Mapping[str, str]) -> BaseModel:
    model, last = config.models[i["model"]], int(i["step"])
    first = max((step for step in model.training.milestones() if step < last), default=0)
    return SegmentSettings(
        model=i["model"],
        seed=config.run.seed,
        first_step=first,
        last_step=last,
        **_shared(SegmentSettings, model),
    )


def _suites(config: Config, i: Mapping[str, str]) -> BaseModel:
    return SuitesSettings(
        model=i["model"],
        step=int(i["step"]),
        suites=[SuiteSettings.model_validate(suite.model_dump()) for suite in config.suites()],
        seed=config.run.seed,
        batch_size=config.evaluation.batch_size,
    )


def _page(config: Config, i: Mapping[str, str]) -> BaseModel:
    return PageSettings(
        run=config.run.name,
        seed=config.run.seed,
        configuration=json.dumps(config.written(), sort_keys=True, indent=1),
        platform=config.platform.name,
        provider=config.run.provider,
        contact=config.run.contact,
        **_shared(PageSettings, config.energy),
    )


_STEPS: dict[str, StepSettings] = {
    "sources.split": _split,
    "sources.dataset": _dataset,
    "sources.fingerprint": _fingerprint,
    "sources.manifest": _manifest,
    "corpus.filter": _filter,
    "corpus.signatures": lambda c, i: SignaturesSettings(
        **_shared(SignaturesSettings, c.corpus[i["corpus"]].deduplication)
    ),
    "corpus.deduplicate": lambda c, i: DeduplicateSettings(deduplication=c.corpus[i["corpus"]].deduplication),
    "corpus.finalise": _finalise,
    "corpus.ngrams": _ngrams,
    "corpus.decontaminate": lambda c, i: DecontaminateSettings(
        minimum_overlap=c.corpus[i["corpus"]].decontamination.minimum_overlap
    ),
    "corpus.statistics": _statistics,
    "corpus.publish": _publish,
    "tokenizer.train": _tokenizer(TrainSettings),
    "tokenizer.fertility": _tokenizer(FertilitySettings),
    "tokens.shard": _shard,
    "tokens.index": lambda c, i: IndexSettings(shards=c.tokens[i["tokens"]].shards),
    "plan.estimate": _estimate,
    "pretrain.segment": _segment,
    "pretrain.export": lambda c, i: ExportSettings(model=i["model"]),
    "evaluate.suites": _suites,
    "report.page": _page,
    "provenance.crate": lambda c, i: CrateSettings(run=c.run.name),
}


def _known_keys(location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the configuration knows where an unknown one stood."""
    schema: Any = Config.model_json_schema()
    node = schema
    for part in location[:-1]:
        if isinstance(part, int):
            node = node.get("items", {})
        elif part in node.get("properties", {}):
            node = node["properties"][part]
        else:
            node = node.get("additionalProperties", {})
        while "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return sorted(node.get("properties", {}))


def _sentence(error: ValidationError) -> str:
    """Return the first problem of a configuration as one sentence that names the key and the way out."""
    problem = error.errors()[0]
    location = problem["loc"]
    field = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        known = _known_keys(location)
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(known)}"
        return f"configuration: unknown key {field}: {advice}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"configuration: the key {field} is missing: write it"
    given = "" if not field or problem["type"] == "value_error" else f" (given: {str(problem['input'])[:80]!r})"
    return f"configuration: {field + ': ' if field else ''}{message}{given}"


def _platform(name: str) -> dict[str, Any]:
    path = PLATFORMS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in PLATFORMS.glob("*.yaml")))
        raise InputError(f"configuration: platform: there is no {name!r}: choose one of {known}")
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def load(raw: Mapping[str, Any]) -> Config:
    """Return the validated configuration; `platform` is the name of a file in workflow/platforms.

    Raises:
        InputError: with one sentence that names the key and suggests the nearest known one.
    """
    try:
        return Config.model_validate({**raw, "platform": _platform(str(raw.get("platform", "local")))})
    except ValidationError as error:
        raise InputError(_sentence(error)) from None
