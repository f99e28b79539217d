"""What of a run's configuration each job receives: exactly the keys that its step reads.

They are parameters of the job's rule, so that a job runs again when one of them changed, and for no other key. Each
function is of the step of its name, for a job with these values of its wildcards (`pipeline.run.steps`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.corpus.contamination_settings import (
    CountItemsSettings,
    DecontaminateSettings,
    FindItemsSettings,
    MatchesSettings,
    NgramsSettings,
    TaskFile,
)
from pipeline.corpus.data_set.settings import STATED, PublishedSource, PublishSettings
from pipeline.corpus.settings import (
    Corpus,
    DeduplicateSettings,
    DescribedSource,
    FilterSettings,
    FindDuplicatesSettings,
    PersonalData,
    SignaturesSettings,
    StatisticsSettings,
)
from pipeline.corpus.text.model_files import fingerprint
from pipeline.evaluate.settings import (
    BaselineSettings,
    DifferencesSettings,
    MemorizationSettings,
    SamplesSettings,
    SuiteSettings,
    SuitesSettings,
)
from pipeline.evaluate.suite_files import ItemFile
from pipeline.ground.hashing import sha256_of
from pipeline.ground.settings import Settings
from pipeline.model.size import parameter_count
from pipeline.opt_out.others import others
from pipeline.opt_out.remains_settings import RemainsSettings
from pipeline.opt_out.reserved_settings import ForgottenSettings, ReservedSettings, line_rules
from pipeline.plan.settings import EstimateSettings
from pipeline.pretrain.settings import ExportSettings, SegmentSettings
from pipeline.provenance.settings import CrateSettings
from pipeline.report.disclosure import Stated
from pipeline.report.settings import PageSettings
from pipeline.run.calibration import forecast_plan
from pipeline.run.config import Config
from pipeline.run.items import counted, leaving
from pipeline.sources.licenses import is_allowed, licenses_in
from pipeline.sources.settings import (
    DatasetSettings,
    EntriesSettings,
    FingerprintSettings,
    Genre,
    ListingSettings,
    ManifestSettings,
    Source,
    SplitSettings,
)
from pipeline.sources.units import listing_sha256
from pipeline.tokenizer.settings import FertilitySettings, TrainSettings
from pipeline.tokens.settings import IndexSettings, ShardSettings, SuffixesSettings, Tokens


def sources_listing(config: Config, i: Mapping[str, str]) -> Settings:
    source = config.source(i["source"])
    return ListingSettings(
        source=source.name,
        pattern=config.source_units(source.name).divided_path()[1],
        split=source.dataset and source.dataset.split,
        units=source.units,
        unit_bytes=source.unit_bytes,
        listing_sha256=listing_sha256(config.units(source.name)),
    )


def sources_split(config: Config, i: Mapping[str, str]) -> Settings:
    name, parts = config.source_units(i["source"]).large_files[i["file"]]
    source = config.source(i["source"])
    return SplitSettings(
        source=source.name,
        file_name=name,
        parts=parts,
        quarantine=source.damaged_share > 0,
        **_shared(SplitSettings, source),
    )


def sources_dataset(config: Config, i: Mapping[str, str]) -> Settings:
    source = config.source(i["source"])
    return DatasetSettings(source=source.name, **_shared(DatasetSettings, source))


def sources_fingerprint(config: Config, i: Mapping[str, str]) -> Settings:
    return FingerprintSettings(source=i["source"])


def opt_out_entries(config: Config, i: Mapping[str, str]) -> Settings:
    return EntriesSettings(source=i["source"], **_shared(EntriesSettings, config.source(i["source"])))


def sources_manifest(config: Config, i: Mapping[str, str]) -> Settings:
    source = config.source(i["source"])
    keys = ManifestSettings.model_fields.keys() & Source.model_fields.keys()
    return ManifestSettings(source=source.name, **{key: getattr(source, key) for key in sorted(keys)})


def corpus_filter(config: Config, i: Mapping[str, str]) -> Settings:
    source, section = config.source(i["source"]), config.corpus[i["corpus"]]
    shared = _shared(FilterSettings, source, section)
    shared |= {
        "languages": section.rules_for(source),
        "personal_data": _with_hash(section.personal_data),
    }
    return FilterSettings(
        source=source.name,
        language_model_sha256=section.language_model and section.language_model.sha256,
        harmful_sha256=_harmful(config, i["corpus"]),
        quarantine=source.damaged_share > 0,
        allowed_licenses=_allowed_licenses(config, source),
        **_samples(source, section),
        **shared | {"harmful": section.harmful.named()},
    )


def _signatures(config: Config, corpus: str) -> SignaturesSettings:
    return SignaturesSettings(**_shared(SignaturesSettings, config.corpus[corpus].deduplication))


def corpus_signatures(config: Config, i: Mapping[str, str]) -> Settings:
    return _signatures(config, i["corpus"])


def opt_out_reserved(config: Config, i: Mapping[str, str]) -> Settings:
    source, section = config.source(i["source"]), config.corpus[i["corpus"]]
    copied = map(config.source, config.corpus_sources(i["corpus"]))
    shared = _shared(ReservedSettings, source, section) | {"personal_data": _with_hash(section.personal_data)}
    return ReservedSettings(
        source=source.name,
        line_rules=line_rules(map(section.rules_for, copied)),
        signatures=_signatures(config, i["corpus"]),
        quarantine=source.damaged_share > 0,
        **shared,
    )


def _with_hash(kinds: PersonalData) -> PersonalData:
    """Return the settings with the hash of the model of names, so that another model is another setting."""
    if kinds.names is None or kinds.names_sha256 is not None:
        return kinds
    return kinds.model_copy(update={"names_sha256": fingerprint(kinds.names)})


@cache
def _sha256(path: Path, changed_nanoseconds: int) -> str:
    """Return the sha256 of a file, read once as long as it does not change: every unit of a corpus asks for it."""
    return sha256_of(path)


def _harmful(config: Config, corpus: str) -> list[str]:
    """Return the sha256 of each list and classifier of harmful content of a corpus."""
    return [_sha256(path, path.stat().st_mtime_ns) for path in config.harmful_files(corpus)]


def _allowed_licenses(config: Config, source: Source) -> list[str]:
    """Return the licences that documents of a source may have of their own: those of the run, or what it declares."""
    if source.license_key is None:
        return []
    declared = {*licenses_in(source.license), *source.license_names.values()}
    return sorted(declared) if config.allowed_licenses is None else config.allowed_licenses


def _samples(source: Source, section: Corpus) -> dict[str, Any]:
    """Return whether samples of the removed documents of a source are kept and shown, and of which licences."""
    if source.license_key is not None:
        return {"samples": True, "own_sample_licenses": section.sample_licenses} if section.keep_removed else {}
    free = source.rights.basis == "public-domain" or is_allowed(source.license, section.sample_licenses)
    return {"samples": section.keep_removed and free}


def corpus_find_duplicates(config: Config, i: Mapping[str, str]) -> Settings:
    return FindDuplicatesSettings(deduplication=config.corpus[i["corpus"]].deduplication)


def corpus_deduplicate(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.corpus[i["corpus"]]
    samples = _samples(config.source(i["source"]), section)
    return DeduplicateSettings(keep_removed=section.keep_removed, **samples)


def _shared(settings: type[Settings], *sections: Settings) -> dict[str, Any]:
    """Return those values of the sections that the step's settings have a key for."""
    return {
        key: getattr(section, key)
        for section in sections
        for key in sorted(type(section).model_fields.keys() & settings.model_fields.keys())
        if key not in ("source", "corpus", "tokenizer", "tokens")
    }


def corpus_ngrams(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.corpus[i["corpus"]].decontamination
    return NgramsSettings(items=_items(leaving(config, i["corpus"])), **_shared(NgramsSettings, section))


def _items(files: list[ItemFile]) -> list[TaskFile]:
    return [
        TaskFile(task=file.task, name=file.path.name, fields=file.fields and [*file.fields], named=file.named)
        for file in files
    ]


def corpus_matches(config: Config, i: Mapping[str, str]) -> Settings:
    return MatchesSettings()


def corpus_find_items(config: Config, i: Mapping[str, str]) -> Settings:
    return FindItemsSettings(**_deciding(FindItemsSettings, config, i["corpus"]))


def _deciding(settings: type[Settings], config: Config, corpus: str) -> dict[str, Any]:
    """Return how it is decided what is an item; the sources that cannot hold any are those of this corpus, sorted."""
    shared = _shared(settings, config.corpus[corpus].decontamination)
    own = set(config.corpus_sources(corpus)) & set(shared["cannot_hold_items"])
    return {**shared, "cannot_hold_items": sorted(own)}


def corpus_decontaminate(config: Config, i: Mapping[str, str]) -> Settings:
    return DecontaminateSettings()


def corpus_count_items(config: Config, i: Mapping[str, str]) -> Settings:
    return CountItemsSettings(
        corpus=i["corpus"],
        items=_items(counted(config, i["corpus"])),
        **_deciding(CountItemsSettings, config, i["corpus"]),
    )


def corpus_statistics(config: Config, i: Mapping[str, str]) -> Settings:
    described = [
        {"name": name, **_shared(DescribedSource, config.source(name))} for name in config.corpus_sources(i["corpus"])
    ]
    section = config.corpus[i["corpus"]]
    rules = [section.rules_for(config.source(name)) for name in config.corpus_sources(i["corpus"])]
    return StatisticsSettings(
        corpus=i["corpus"],
        language_model=section.language_model and Path(section.language_model.path).name,
        minimum_scores={
            code: sorted({of_source[code].minimum_score for of_source in rules}) for code in sorted(section.languages)
        },
        sources=[DescribedSource.model_validate(entry) for entry in described],
    )


def opt_out_forgotten(config: Config, i: Mapping[str, str]) -> Settings:
    return ForgottenSettings(corpus=i["corpus"], signatures=_signatures(config, i["corpus"]))


def corpus_publish(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.corpus[i["corpus"]]
    answers = Stated(config.disclosure, None, None)
    sources = [config.source(name) for name in config.corpus_sources(i["corpus"])]
    return PublishSettings(
        run=config.run.name,
        corpus=i["corpus"],
        provider=config.run.provider,
        contact=config.run.contact,
        stated={key: text for key in STATED if (text := answers.text(key))},
        keep_removed=section.keep_removed,
        filters=_thresholds(section, {source.genre for source in sources}),
        sources=[PublishedSource(**_shared(PublishedSource, source)) for source in sources],
    )


def _thresholds(section: Corpus, genres: Collection[Genre | None]) -> dict[str, Any]:
    """Return by what a corpus is filtered and deduplicated: the rules of its languages, or of the genres it has."""
    if not section.genres:
        return section.model_dump(mode="json", include={"languages", "deduplication"})
    shown = section.model_dump(mode="json", include={"genres", "deduplication"})
    return shown | {"genres": {genre: rules for genre, rules in shown["genres"].items() if genre in genres}}


def _held_out(config: Config, tokenizer: str) -> float:
    """The held-out share is that of the token sets of its corpus, so that a tokenizer never trains on validation text.

    All tokenizers of a corpus have the same, so that they are compared on the same text.
    """
    corpus = config.tokenizer[tokenizer].corpus
    users = [t.validation_fraction for t in config.tokens.values() if tokenizer == t.tokenizer or corpus == t.corpus]
    return max(users, default=Tokens().validation_fraction)


def tokenizer_train(config: Config, i: Mapping[str, str]) -> Settings:
    name = i["tokenizer"]
    return TrainSettings(
        validation_fraction=_held_out(config, name),
        markers=config.markers(name),
        **_shared(TrainSettings, config.tokenizer[name]),
    )


def tokenizer_fertility(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.tokenizer[i["tokenizer"]]
    return FertilitySettings(
        validation_fraction=_held_out(config, i["tokenizer"]),
        parallel=sorted(section.parallel),
        **{key: value for key, value in _shared(FertilitySettings, section).items() if key != "parallel"},
    )


def tokens_shard(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.tokens[i["tokens"]]
    return ShardSettings(shard=int(i["shard"]), **_shared(ShardSettings, section))


def tokens_index(config: Config, i: Mapping[str, str]) -> Settings:
    return IndexSettings(shards=config.tokens[i["tokens"]].shards)


def tokens_suffixes(config: Config, i: Mapping[str, str]) -> Settings:
    return SuffixesSettings()


def plan_estimate(config: Config, i: Mapping[str, str]) -> Settings:
    models = {
        name: {
            "architecture": model.architecture,
            "training": model.training,
            "vocabulary_size": config.tokenizer[config.tokens[model.tokens].tokenizer].vocabulary_size,
        }
        for name, model in config.models.items()
    }
    return EstimateSettings.model_validate(
        {
            "models": models,
            "platform": config.platform.model_dump(),
            "energy": config.emissions.model_dump(),
            "forecast": forecast_plan(config),
        }
    )


def pretrain_segment(config: Config, i: Mapping[str, str]) -> Settings:
    model, last = config.models[i["model"]], int(i["step"])
    first = max((step for step in model.training.milestones() if step < last), default=0)
    return SegmentSettings(
        first_step=first,
        last_step=last,
        **_shared(SegmentSettings, model) | {"seed": config.model_seed(i["model"])},
    )


def pretrain_export(config: Config, i: Mapping[str, str]) -> Settings:
    model = config.models[i["model"]]
    trained = pretrain_segment(config, {**i, "step": str(model.training.steps)}).of_result()
    vocabulary_size = config.tokenizer[config.tokens[model.tokens].tokenizer].vocabulary_size
    told = {
        name: value
        for name, value in _leaves(trained)
        if isinstance(value, bool | int | float | str) and name not in ("first_step", "last_step")
    }
    return ExportSettings(hyperparameters={**told, "parameters": parameter_count(model.architecture, vocabulary_size)})


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def evaluate_suites(config: Config, i: Mapping[str, str]) -> Settings:
    return SuitesSettings(
        model=i["model"],
        step=int(i["step"]),
        **_asked(config),
    )


def _asked(config: Config) -> dict[str, Any]:
    """Return what every model is asked: the same, whatever it is."""
    return {
        "suites": [SuiteSettings.model_validate(suite.model_dump()) for suite in config.suites()],
        "seed": config.evaluation.seed,
        "batch_size": config.evaluation.batch_size,
    }


def evaluate_baselines(config: Config, i: Mapping[str, str]) -> Settings:
    untrained = config.baselines()[i["baseline"]]
    seed = None if untrained is None else config.model_seed(untrained)
    return BaselineSettings(name=i["baseline"], untrained_seed=seed, **_asked(config))


def evaluate_samples(config: Config, i: Mapping[str, str]) -> Settings:
    return SamplesSettings(
        model=i["model"], memorization=_memorization(config, i["model"]), **config.evaluation.samples.model_dump()
    )


def _memorization(config: Config, model: str) -> MemorizationSettings | None:
    """Return what is counted of a model's text, by the searches of its corpus but for the model of names."""
    section, name = config.evaluation.memorization, config.tokens[config.models[model].tokens].corpus
    if section is None:
        return None
    corpus = config.corpus[name]
    return MemorizationSettings(
        seed=config.evaluation.seed,
        batch_size=config.evaluation.batch_size,
        harmful=corpus.harmful.named(),
        harmful_sha256=_harmful(config, name),
        personal_data=corpus.personal_data.model_copy(update={"names": None, "names_sha256": None}),
        **section.model_dump(),
    )


def evaluate_differences(config: Config, i: Mapping[str, str]) -> Settings:
    """Models that are trained alike on the same tokens are told from their seeds, if these are not the same."""
    groups: dict[str, dict[int, str]] = {}
    for name, model in sorted(config.models.items()):
        trained = pretrain_segment(config, {"model": name, "step": str(model.training.steps)}).of_result()
        seed = trained.pop("seed")
        groups.setdefault(json.dumps([model.tokens, trained]), {}).setdefault(seed, name)
    return DifferencesSettings(seeds=[[*of_seed.values()] for of_seed in groups.values() if len(of_seed) > 1])


def opt_out_remains(config: Config, i: Mapping[str, str]) -> Settings:
    return RemainsSettings(
        run=config.run.name,
        corpora={name: _signatures(config, name) for name in config.corpus},
        tokens={name: section.corpus for name, section in config.tokens.items()},
        others=others(Path(config.run.results), config.run.name),
    )


def report_page(config: Config, i: Mapping[str, str]) -> Settings:
    return PageSettings(
        run=config.run.name,
        seed=config.run.seed,
        configuration=json.dumps(config.written(), sort_keys=True, indent=1),
        platform=config.platform.name,
        language=config.report.language,
        provider=config.run.provider,
        contact=config.run.contact,
        disclosure=config.disclosure,
        corpora={name: config.tokens[model.tokens].corpus for name, model in config.models.items()},
        license_evidence_sha256=config.license_evidence(),
        power={part.name: part.power for part in config.platform.partitions.values() if part.power},
        **{**_shared(PageSettings, config.emissions, config.platform), **config.emissions.yearly},
    )


def provenance_crate(config: Config, i: Mapping[str, str]) -> Settings:
    return CrateSettings(
        run=config.run.name,
        provider=config.run.provider,
        provider_url=config.run.provider_url,
        contact=config.run.contact,
    )
