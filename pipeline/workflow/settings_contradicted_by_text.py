"""What a sample of the raw text shows: the genre of a source, and settings that it contradicts.

Such settings are the license of a source, a vocabulary and the length of a sequence. For them, the sample is the
beginning of some files, and it is read before the first job of a run, and only where the raw files are so few or small
that a vocabulary or a sequence may be too large for them, or where documents may state a license.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from pipeline.config.configuration import Config
from pipeline.config.estimated_genres import OLDER_PRESET
from pipeline.core.errors import InputError
from pipeline.forecast.corpus_size_and_time import CorpusSize, estimate_corpus_size
from pipeline.layout import MANIFEST
from pipeline.sources.decompression import DamagedFile
from pipeline.sources.raw_documents import RawDocument, make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.source_units import SourceUnits
from pipeline.sources.spdx_licenses import are_equivalent, parse_license

LICENSE_FILES, LICENSE_DOCUMENTS = 3, 100
"""Files of a source, and documents of each, whose licenses are read."""
TOKEN_BYTES = ((8192, 3.0), (1024, 2.0), (0, 1.0))
"""Vocabularies from this size on, and the bytes of a token at least; docs/tokenizer.md measured 3.68 from 8,192 on."""
MERGE_BYTES = 2
"""Bytes of text per occurrence of a merge, at least: natural text gives far fewer merges."""
TEXT_SHARE = 0.05
"""Of the bytes of raw files at least is text, so that larger files need no sample; compressed ones have more."""


def find_contradicted_settings(config: Config, models: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each setting that a sample of the raw text contradicts.

    Args:
        models: the models that are to be trained.
    """
    for source in config.sources:
        is_read = MANIFEST.path(config.run_directory, source=source.name).is_file()
        if source.license_key is None and source.dataset is None and not is_read:
            yield from _find_contradicted_licenses(config, config.source_units(source.name))
    for corpus in config.corpus:
        listed = [config.source_units(name) for name in config.corpus_sources(corpus)]
        yield from _size_problems(corpus, [*_text_bytes_needed_by_settings(config, corpus, models)], listed)


def _find_contradicted_licenses(config: Config, listed: SourceUnits) -> Iterator[str]:
    source = listed.source
    documents = [
        document for name in islice(listed.files, LICENSE_FILES) for document in _read_first_documents(listed, name)
    ]
    others = [
        document
        for document in documents
        if document.license is not None
        and not ((known := parse_license(document.license, {})) and are_equivalent(known, str(source.license)))
    ]
    allowed = max(config.corpus[name].broken_share for name in config.corpus)
    if len(others) > allowed * len(documents):
        yield (
            f"source {source.name}: license is {source.license}, but {len(others)} of the first {len(documents)} "
            f"documents state another one, such as {others[0].id} ({(others[0].license or '')[:60]}): correct it, or "
            "set license_key to the field with their license"
        )


def _read_first_documents(listed: SourceUnits, name: str) -> list[RawDocument]:
    source, keys = listed.source, listed.source.field_names()
    records = read_records(listed.files[name], name, keys, source.document_bytes)
    try:
        documents = make_raw_documents(records, f"{source.name}/{name}", keys)
        return [document for document, _ in islice(documents, LICENSE_DOCUMENTS)]
    except DamagedFile:  # the filter reports it
        return []


def _size_problems(corpus: str, needs: list[tuple[float, str]], listed: list[SourceUnits]) -> Iterator[str]:
    """Yield a sentence for each vocabulary and sequence that even all text of a corpus would not fill."""
    raw_bytes = sum(sum(units.sizes.values()) for units in listed)
    if not needs or max(needs)[0] < TEXT_SHARE * raw_bytes:
        return
    samples = [estimate_corpus_size(units) for units in listed]
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


def describe_genre_defaults(config: Config, known: Collection[str] = ()) -> Iterator[str]:
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
    """Yield a sentence for each source whose files are missing."""
    for source in config.sources:
        try:
            _ = config.source_units(source.name).sizes
        except InputError as error:
            yield str(error)
