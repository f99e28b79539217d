"""What the steps of the chapters sources and corpus receive of a run's configuration, as in `step_settings`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.config.evaluation_items import counted, leaving
from pipeline.core.hashing import sha256_of
from pipeline.core.settings import Settings
from pipeline.corpus.contamination_settings import (
    CountItemsSettings,
    DecontaminateSettings,
    FindItemsSettings,
    MatchesSettings,
    NgramsSettings,
    TaskFile,
)
from pipeline.corpus.data_set.settings import STATED, PublishedSource, PublishSettings
from pipeline.corpus.quality_settings import PerplexitySettings, ScoresSettings, Seeds
from pipeline.corpus.settings import (
    Copies,
    Corpus,
    DeduplicateSettings,
    DescribedSource,
    EqualKeysSettings,
    FilterSettings,
    FindDuplicatesSettings,
    PersonalData,
    QualitySettings,
    SignaturesSettings,
    StatisticsSettings,
)
from pipeline.corpus.text.model_files import fingerprint
from pipeline.evaluate.task_files import ItemFile
from pipeline.opt_out.reserved_settings import ForgottenSettings, ReservedSettings, line_rules
from pipeline.report.disclosure import Stated
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
        **shared(SplitSettings, source),
    )


def sources_dataset(config: Config, i: Mapping[str, str]) -> Settings:
    source = config.source(i["source"])
    return DatasetSettings(source=source.name, **shared(DatasetSettings, source))


def sources_fingerprint(config: Config, i: Mapping[str, str]) -> Settings:
    return FingerprintSettings(source=i["source"], document_bytes=config.source(i["source"]).document_bytes)


def opt_out_entries(config: Config, i: Mapping[str, str]) -> Settings:
    return EntriesSettings(source=i["source"], **shared(EntriesSettings, config.source(i["source"])))


def sources_manifest(config: Config, i: Mapping[str, str]) -> Settings:
    source = config.source(i["source"])
    keys = ManifestSettings.model_fields.keys() & Source.model_fields.keys()
    return ManifestSettings(source=source.name, **{key: getattr(source, key) for key in sorted(keys)})


def corpus_filter(config: Config, i: Mapping[str, str]) -> Settings:
    source, section = config.source(i["source"]), config.corpus[i["corpus"]]
    keys = shared(FilterSettings, source, section)
    keys |= {
        "languages": section.rules_for(source),
        "personal_data": _with_hash(section.personal_data),
    }
    return FilterSettings(
        source=source.name,
        language_model_sha256=section.language_model and section.language_model.sha256,
        harmful_sha256=harmful(config, i["corpus"]),
        quarantine=source.damaged_share > 0,
        allowed_licenses=_allowed_licenses(config, source),
        **_samples(source, section),
        **keys | {"harmful": section.harmful.named()},
    )


def signatures(config: Config, corpus: str) -> SignaturesSettings:
    return SignaturesSettings(**shared(SignaturesSettings, config.corpus[corpus].deduplication))


def corpus_signatures(config: Config, i: Mapping[str, str]) -> Settings:
    return signatures(config, i["corpus"])


def opt_out_reserved(config: Config, i: Mapping[str, str]) -> Settings:
    source, section = config.source(i["source"]), config.corpus[i["corpus"]]
    copied = map(config.source, config.corpus_sources(i["corpus"]))
    keys = shared(ReservedSettings, source, section) | {"personal_data": _with_hash(section.personal_data)}
    return ReservedSettings(
        source=source.name,
        line_rules=line_rules(map(section.rules_for, copied)),
        signatures=signatures(config, i["corpus"]),
        quarantine=source.damaged_share > 0,
        **keys,
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


def _hash_of(path: Path) -> str:
    return _sha256(path, path.stat().st_mtime_ns)


def harmful(config: Config, corpus: str) -> list[str]:
    """Return the sha256 of each list and classifier of harmful content of a corpus."""
    return [*map(_hash_of, config.harmful_files(corpus))]


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


def corpus_equal_keys(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.corpus[i["corpus"]].deduplication
    return EqualKeysSettings(share=int(i["share"]), shares=section.jobs, **shared(EqualKeysSettings, section))


def corpus_find_duplicates(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.corpus[i["corpus"]].deduplication
    return FindDuplicatesSettings(deduplication=Copies(**shared(Copies, section)))


def corpus_deduplicate(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.corpus[i["corpus"]]
    samples = _samples(config.source(i["source"]), section)
    return DeduplicateSettings(keep_removed=section.keep_removed, **samples)


def shared(settings: type[Settings], *sections: Settings) -> dict[str, Any]:
    """Return those values of the sections that the step's settings have a key for."""
    return {
        key: getattr(section, key)
        for section in sections
        for key in sorted(type(section).model_fields.keys() & settings.model_fields.keys())
        if key not in ("source", "corpus", "tokenizer", "tokens")
    }


def corpus_quality(config: Config, i: Mapping[str, str]) -> Settings:
    """The files are named in the order of `Config.seed_files`."""
    section, files = config.corpus[i["corpus"]], iter(config.seed_files(i["corpus"]))
    languages = {
        language: [
            Seeds(sha256=_hash_of(file := next(files)), name=file.name, label=label, **shared(Seeds, seed_set))
            for label, sets in (("good", seeds.good), ("bad", seeds.bad))
            for seed_set in sets
        ]
        for language, seeds in sorted(section.quality.items())
    }
    return QualitySettings(normalisation=section.normalisation, languages=languages)


def corpus_scores(config: Config, i: Mapping[str, str]) -> Settings:
    return ScoresSettings()


def corpus_perplexity(config: Config, i: Mapping[str, str]) -> Settings:
    return PerplexitySettings(tokens=config.perplexity(i["corpus"]).tokens)


def corpus_ngrams(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.corpus[i["corpus"]].decontamination
    return NgramsSettings(items=_items(leaving(config, i["corpus"])), **shared(NgramsSettings, section))


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
    keys = shared(settings, config.corpus[corpus].decontamination)
    own = set(config.corpus_sources(corpus)) & set(keys["cannot_hold_items"])
    return {**keys, "cannot_hold_items": sorted(own)}


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
        {"name": name, **shared(DescribedSource, config.source(name))} for name in config.corpus_sources(i["corpus"])
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
    return ForgottenSettings(corpus=i["corpus"], signatures=signatures(config, i["corpus"]))


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
        sources=[PublishedSource(**shared(PublishedSource, source)) for source in sources],
    )


def _thresholds(section: Corpus, genres: Collection[Genre | None]) -> dict[str, Any]:
    """Return by what a corpus is filtered and deduplicated: the rules of its languages, or of the genres it has."""
    rules = "genres" if section.genres else "languages"
    shown = section.model_dump(mode="json", include={rules: True, "deduplication": set(Copies.model_fields)})
    if not section.genres:
        return shown
    return shown | {"genres": {genre: rules for genre, rules in shown["genres"].items() if genre in genres}}
