"""What a sample of the raw text shows: the genre of a source, and settings that it contradicts.

Such settings are the license of a source, the field of its text, a vocabulary and the length of a sequence. For them,
the sample is the beginning of some files, and it is read before the first job of a run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.config.configuration_errors import explain_bad_file_path
from pipeline.config.genre_estimation_from_samples import OLDER_PRESET
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import DATA_PLACEHOLDER
from pipeline.corpus.rules.presets import FUNCTION_WORDS
from pipeline.corpus.text.language_codes import advise_language
from pipeline.forecast.corpus_size_and_time import CorpusSize, estimate_source_size
from pipeline.layout import MANIFEST
from pipeline.sources.decompression import DamagedFile
from pipeline.sources.raw_documents import BROKEN_REASONS, RawDocument, RawRecord, make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.source_units import SourceUnits
from pipeline.sources.spdx_license_parser import are_equivalent, normalize_license

SAMPLED_FILES, SAMPLED_DOCUMENTS = 3, 100
"""Files of a source, and documents of each, that are read."""
SAMPLED_CHARACTERS = 3000
"""Of a document, by which its language is looked at."""
FUNCTION_WORD_SHARE = 0.25
"""The least share of a language's function words by which text is taken for it. Measured on 26 sources: of Dutch and
English running text at least 0.24 of the words, of other languages at most 0.10, but for Frisian (0.24 Dutch ones)."""
NEAR_LANGUAGES = ("af", "fy", "li", "nds", "vls", "zea")
"""Languages that share function words with Dutch."""
TOKEN_BYTES = ((8192, 3.0), (1024, 2.0), (0, 1.0))
"""Vocabularies from this size on, and the least bytes of a token: docs/results/tokenizer.md has 3.68 from 8,192 on."""
MERGE_BYTES = 2
"""Bytes of text per occurrence of a merge, at least: natural text gives far fewer merges."""
TEXT_SHARE = 0.05
"""Of the bytes of raw files at least is text, so that larger files need no sample; compressed ones have more."""


@dataclass(frozen=True)
class Sample:
    """The first documents of the first files of a source.

    Attributes:
        listed: the source.
        documents: each with the record that it was made of.
        is_complete: whether the source has no other documents.
    """

    listed: SourceUnits
    documents: list[tuple[RawDocument, RawRecord]]
    is_complete: bool

    @property
    def files(self) -> str:
        """The files that were read, for a sentence."""
        return " and ".join(str(path) for path in islice(self.listed.files.values(), SAMPLED_FILES))


def _sample_unread_sources(config: Config) -> Iterator[Sample]:
    """Yield a sample of each source that no job has read yet, but not of a data set that is fetched later."""
    for source in config.sources:
        is_read = MANIFEST.path(config.run_directory, source=source.name).is_file()
        if source.dataset is None and not is_read:
            listed = config.source_units(source.name)
            read = [_read_first_documents(listed, name) for name in islice(listed.files, SAMPLED_FILES)]
            is_complete = len(read) == len(listed.files) and all(
                documents is not None and len(documents) < SAMPLED_DOCUMENTS for documents in read
            )
            yield Sample(listed, [*chain(*filter(None, read))], is_complete)


def find_contradicted_sources(config: Config) -> Iterator[str]:
    """Yield a sentence for each source with text that cannot be read or that states another license.

    Raises:
        InputError: a file is not of its format, or lacks the column of the text.
    """
    allowed = max(config.corpus[name].broken_share for name in config.corpus)
    for sample in _sample_unread_sources(config):
        if sentence := _describe_unreadable_text(sample, allowed, is_certain=True):
            yield sentence
        elif sample.listed.source.license_key is None:
            yield from _find_contradicted_licenses(sample, allowed)


def find_contradicted_settings(config: Config, models: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each setting that a sample of the raw text contradicts, and for text that cannot be read.

    Args:
        models: the models that are to be trained.

    Raises:
        InputError: a file is not of its format, or lacks the column of the text.
    """
    problems = [*find_contradicted_sources(config)]
    yield from problems
    for corpus in config.corpus if not problems else ():
        listed = [config.source_units(name) for name in config.corpus_sources(corpus)]
        yield from _size_problems(corpus, [*_text_bytes_needed_by_settings(config, corpus, models)], listed)


def find_source_hints(config: Config) -> Iterator[str]:
    """Yield a sentence for each source with many broken records in its sample, or with text in another language.

    And for sources that read one path.
    """
    allowed = max(config.corpus[name].broken_share for name in config.corpus)
    for sample in _sample_unread_sources(config):
        if sentence := _describe_unreadable_text(sample, allowed, is_certain=False) or _describe_language(sample):
            yield sentence
    readers: dict[tuple[str, str | None], str] = {}
    for source in config.sources:
        first = readers.setdefault((source.path or source.name, source.language_key and source.language), source.name)
        if first != source.name:
            yield f"source {source.name}: it reads the same path {source.path} as source {first}: leave one of them out"


def _describe_unreadable_text(sample: Sample, allowed: float, *, is_certain: bool) -> str | None:
    """Return a sentence on records without text.

    Args:
        allowed: the share of broken records that a run allows.
        is_certain: return it only where a run would fail or have no text; else only where it may.
    """
    source, number = sample.listed.source, len(sample.documents)
    name = source.name
    if is_certain and sample.is_complete and not number:
        return f"source {name}: {sample.files} is empty: write text into it, or leave the source out"
    broken = [document for document, _ in sample.documents if document.reason in BROKEN_REASONS]
    would_fail = (sample.is_complete or len(broken) == number) and "damaged_share" not in source.model_fields_set
    if len(broken) <= allowed * number or is_certain != would_fail:
        return None
    reasons = {document.reason for document in broken}
    if reasons == {"missing_text"} and len(broken) == number:
        return _describe_missing_field(sample)
    is_encoded = reasons == {"invalid_utf8"}
    advice = "save it as UTF-8, as with iconv -f latin1 -t utf-8" if is_encoded else "repair the file"
    count = f"{len(broken)} of the {'' if sample.is_complete else 'first '}{number} records"
    return (
        f"source {name}: {count} of {sample.files} cannot be read, such as {broken[0].id} ({broken[0].reason}): "
        f"{advice}, or raise broken_share of the corpus"
    )


def _describe_language(sample: Sample) -> str | None:
    """Return a sentence for a source with the function words of another language than it states."""
    source = sample.listed.source
    words = [word for document, _ in sample.documents for word in (document.text or "")[:SAMPLED_CHARACTERS].split()]
    counts = Counter(word.lower() for word in words)
    shares = {name: sum(map(counts.__getitem__, known)) / max(len(words), 1) for name, known in FUNCTION_WORDS.items()}
    likely = max(shares, key=lambda name: shares[name])
    if source.language_key or shares[likely] < FUNCTION_WORD_SHARE or source.language in (likely, *NEAR_LANGUAGES):
        return None
    return (
        f"source {source.name}: language is {source.language}, but {shares[likely]:.0%} of the words in its first "
        f"documents are common ones of {likely}: write `language: {likely}` if that is what it is"
    )


def _describe_missing_field(sample: Sample) -> str:
    source, lengths = sample.listed.source, Counter[str]()
    for _, record in sample.documents:
        for key, value in (record.fields or {}).items():
            lengths[str(key)] += len(value) if isinstance(value, str) else 0
    ((longest, length),) = lengths.most_common(1) or [("", 0)]
    advice = f"set `text_key: {longest}`" if length else "set text_key to the field with the text"
    fields = ", ".join(lengths)
    return (
        f"source {source.name}: no document with a field `{source.text_key}` that has text in {sample.files} (fields: "
        f"{fields}): {advice}"
    )


def _read_language(manifest: Path) -> str | None:
    """Return the language with which a source was read; None where its manifest states none."""
    read: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8")).get("source", {})
    return read.get("language")


def find_invalid_language_codes(config: Config) -> Iterator[str]:
    """Yield a sentence for each source with a language that is no code of ISO 639, unless it was read with it."""
    for source in config.sources:
        manifest = MANIFEST.path(config.run_directory, source=source.name)
        is_read = manifest.is_file() and _read_language(manifest) in (source.language, None)
        if not is_read and (advice := advise_language(source.language)):
            yield f"sources.{source.name}.language: {source.language!r} is no code of a language: {advice}"


def _find_contradicted_licenses(sample: Sample, allowed: float) -> Iterator[str]:
    source, documents = sample.listed.source, [document for document, _ in sample.documents]
    others = [
        document
        for document in documents
        if document.license is not None
        and not ((known := normalize_license(document.license, {})) and are_equivalent(known, str(source.license)))
    ]
    if len(others) > allowed * len(documents):
        yield (
            f"source {source.name}: license is {source.license}, but {len(others)} of the first {len(documents)} "
            f"documents state another one, such as {others[0].id} ({(others[0].license or '')[:60]}): correct it, or "
            "set license_key to the field with their license"
        )


def _read_first_documents(listed: SourceUnits, name: str) -> list[tuple[RawDocument, RawRecord]] | None:
    """Return the first documents of a file; None of a damaged one, which the filter reports."""
    source, keys = listed.source, listed.source.field_names()
    records = read_records(listed.files[name], name, keys, source.document_bytes)
    try:
        return [*islice(make_raw_documents(records, f"{source.name}/{name}", keys), SAMPLED_DOCUMENTS)]
    except DamagedFile:
        return None
    except InputError as error:
        raise InputError(f"source {source.name}: {error}") from None


def _size_problems(corpus: str, needs: list[tuple[float, str]], listed: list[SourceUnits]) -> Iterator[str]:
    """Yield a sentence for each vocabulary and sequence that even all text of a corpus would not fill."""
    raw_bytes = sum(sum(units.sizes.values()) for units in listed)
    if not needs or max(needs)[0] < TEXT_SHARE * raw_bytes:
        return
    samples = [estimate_source_size(units) for units in listed]
    if any(sample is None for sample in samples):  # a data set that is not downloaded
        return
    text_bytes = sum((sample for sample in samples if sample), CorpusSize()).text_bytes
    for needed, sentence in needs:
        if needed > text_bytes:
            yield f"{sentence} of text, and corpus {corpus} has about {text_bytes / 1e6:,.3g} MB: lower it, or add text"


def _text_bytes_needed_by_settings(config: Config, corpus: str, models: Collection[str]) -> Iterator[tuple[float, str]]:
    """Yield how many bytes of text each vocabulary and sequence needs, and the beginning of a sentence on it."""
    for name, tokenizer in config.tokenizer.items():
        if tokenizer.corpus == corpus and tokenizer.algorithm == "bpe":
            needed = float(tokenizer.vocabulary_size * tokenizer.minimum_frequency * MERGE_BYTES)
            size = f"{tokenizer.vocabulary_size:,}"
            yield needed, f"tokenizer.{name}.vocabulary_size is {size}, which needs {needed / 1e6:,.3g} MB"
    for name in models:
        model = config.models[name]
        tokens = config.tokens[model.tokens]
        if tokens.corpus == corpus and not model.pretrained:
            vocabulary = config.tokenizer[tokens.tokenizer].vocabulary_size
            token_bytes = next(size for entries, size in TOKEN_BYTES if vocabulary >= entries)
            length = max(model.training.batch_schedule.sequence_lengths)
            needed = length * token_bytes / (1 - tokens.validation_fraction)
            yield needed, f"models.{name}.training.sequence_length is {length:,}, which needs {needed / 1e6:,.3g} MB"


def describe_estimated_genres(config: Config, known: Collection[str] = ()) -> Iterator[str]:
    """Yield a sentence for each source that gets its genre by a sample, and each corpus that keeps an older default.

    Args:
        known: sources whose genre the user has been shown.
    """
    for name, estimate in config.estimated_genres().items():
        if name not in known:
            yield estimate.explain_estimate(name)
    for name in config.corpora_with_older_default():
        yield (
            f"corpus.{name} states no preset, and this run began when the default was {OLDER_PRESET}, so it keeps it: "
            f"write preset: {OLDER_PRESET} to state it, or preset: genre for the rules of each source's genre"
        )


def find_missing_source_files(config: Config) -> Iterator[str]:
    """Yield a sentence for each source whose files are missing; one for all that need the folder of the data."""
    waiting = [one for one in config.sources if config.data is None and DATA_PLACEHOLDER in (one.path or "")]
    for source in config.sources:
        try:
            _ = config.source_units(source.name).sizes
        except InputError as error:
            advice = explain_bad_file_path(source.path) if source.path else None
            if source not in waiting:
                yield f"source {source.name}: {advice}" if advice else str(error)
            elif source is waiting[0]:
                yield f"{error}{f'; {len(waiting) - 1} more sources need it' if waiting[1:] else ''}"
