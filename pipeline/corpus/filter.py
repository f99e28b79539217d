"""Filters one unit of a source: reads, normalizes, identifies languages, applies filter rules, masks personal data."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from loguru import logger

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.corpus.documents import DOCUMENT_SCHEMA, DocumentCollector, write_removed
from pipeline.corpus.personal_data.metadata_masking import MetadataMasker, MetadataMaskingStep
from pipeline.corpus.personal_data.text_masking import PersonalDataMaskingStep
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.raw_text_reader import RawTextReader
from pipeline.corpus.removed_documents import RemovedDocuments, RemovedTexts, create_removed_text_writer
from pipeline.corpus.rights_filters import LicenseFilter, OptOutFilter, PageReservationFilter, check_license_differences
from pipeline.corpus.rules.gopher import GopherQuality, GopherRepetition
from pipeline.corpus.rules.harmful_content import HarmfulContentFilter
from pipeline.corpus.rules.rule_block import RuleBlock
from pipeline.corpus.rules.settings import LanguageRules
from pipeline.corpus.rules.web_text import C4Quality, FineWebQuality, NordicPileQuality
from pipeline.corpus.settings import FilterSettings
from pipeline.corpus.stated_language_and_url_filters import StatedLanguageFilter, UrlListFilter
from pipeline.corpus.text.language_identification import LanguageFilter
from pipeline.corpus.text.text_cleaning import TextCleaner


def run_blocks(blocks: Sequence[PipelineStep], tasks: int = 1) -> list[PipelineStep]:
    """Run datatrove blocks and return the executed copies; with several tasks, the copies of the last one.

    The executor's log is disabled, because it shows a user's mistake as a traceback. Statistics go to standard error.
    """
    logger.disable("datatrove")
    try:
        with tempfile.TemporaryDirectory() as logs:
            executor = LocalPipelineExecutor(list(blocks), tasks=tasks, workers=1, logging_dir=logs)
            statistics = executor.run()
    finally:
        logger.enable("datatrove")
    print(statistics.get_repr(), file=sys.stderr)
    return list(executor.pipeline)


NO_FILES: list[Path] = []
NO_UNIT: Mapping[str, Any] = {"opt_out": None, "license": None}
# C4 edits the text, so it comes first: the other rules then hold for the text that is kept. FineWeb's own pipeline
# applies Gopher's rules before C4's.
RULE_BLOCKS: list[type[RuleBlock[Any]]] = [
    *(C4Quality, GopherRepetition, GopherQuality, FineWebQuality, NordicPileQuality),
]


class KeptDocumentCollector(PipelineStep):  # type: ignore[misc]
    """Collects the documents that pass all filters, and counts their masked personal data."""

    type = "💽 - WRITER"
    name = "Collect"

    def __init__(self) -> None:
        super().__init__()
        self.documents = DocumentCollector()
        self.kept = 0
        self.personal_data: Counter[str] = Counter()
        self.dropped_lines: Counter[str] = Counter()

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        columns = [name for name in DOCUMENT_SCHEMA.names if name not in ("id", "text", "id_hash")]
        for document in data:
            fields = {name: document.metadata[name] for name in columns}
            self.documents.add({"id": document.id, "text": document.text, **fields})
            self.kept += 1
            self.personal_data.update(document.metadata["personal_data"])
            self.dropped_lines.update(document.metadata.get("dropped_lines", {}))
            yield document


def rule_blocks(languages: Mapping[str, LanguageRules], removed: RemovedDocuments | None = None) -> list[PipelineStep]:
    """Return the blocks with rules on lines and words that at least one of the languages uses."""
    splitters = {code: rules.words for code, rules in languages.items()}
    return [
        block({code: getattr(rules, block.section) for code, rules in languages.items()}, removed, splitters)
        for block in RULE_BLOCKS
        if any(getattr(rules, block.section) is not None for rules in languages.values())
    ]


def build_filter_pipeline(
    settings: FilterSettings,
    raw: RawFiles,
    unit: Mapping[str, Any] = NO_UNIT,
    model: Path | None = None,
    harmful: list[Path] = NO_FILES,
    url_lists: list[Path] = NO_FILES,
    texts: RemovedTexts | None = None,
) -> list[PipelineStep]:
    """Return the blocks of this step, the reader first, for any datatrove pipeline.

    Args:
        unit: the unit's entry of the manifest: its opt-outs, and the license of the source if records state their own
            licenses without a `license_key`.
        model: the file of the language model; None uses py3langid.
        harmful: the files of the word lists and classifiers.
        url_lists: the files of `settings.blocked_urls`, then those of `settings.allowed_urls`.
        texts: collects the texts of removed documents.
    """
    fields = MetadataMasker(settings.personal_data)
    removed = RemovedDocuments(settings.source, "filter", fields, texts)
    languages = settings.languages
    return [
        RawTextReader(raw, removed),
        *([OptOutFilter.from_unit(unit["opt_out"], removed)] if unit["opt_out"] else []),
        *([PageReservationFilter(removed)] if settings.page_reservations else []),
        *([StatedLanguageFilter(settings.stated_language, removed)] if settings.stated_language else []),
        *([UrlListFilter(settings, url_lists, removed)] if settings.blocked_urls or settings.allowed_urls else []),
        LicenseFilter(settings, unit["license"], removed),
        MetadataMaskingStep(fields),
        TextCleaner(settings.normalization),
        LanguageFilter(
            {code: rules.minimum_score for code, rules in languages.items()},
            removed,
            {code: rules.mixed_language for code, rules in languages.items()},
            model,
        ),
        *rule_blocks(languages, removed),
        HarmfulContentFilter(settings.harmful, harmful, removed),
        PersonalDataMaskingStep(settings.personal_data),
    ]


def _verify_identification_model(settings: FilterSettings, files: list[Path]) -> Path | None:
    """Return the file of the language model after checking its sha256; None for py3langid."""
    if settings.language_model_sha256 is None:
        return None
    if len(files) != 1:
        raise InputError("language_model: give the step its file as --input model PATH")
    sha256 = hash_file(files[0])
    if sha256 != settings.language_model_sha256:
        raise InputError(
            f"language_model: the sha256 of {files[0].name} is {sha256}: write that in the configuration, "
            "or put the file there that was meant"
        )
    return files[0]


def run(
    settings: FilterSettings,
    *,
    unit: Path,
    files: list[Path],
    model: list[Path] = NO_FILES,
    harmful: list[Path] = NO_FILES,
    url_lists: list[Path] = NO_FILES,
    documents: Path,
    removed: Path,
    private: Path | None = None,
) -> dict[str, Any]:
    """Write the kept and the removed documents; return their counts, by reason.

    A truncated or damaged file, or one with too many broken records, is skipped completely and reported.

    Args:
        unit: the unit's file of the manifest: names and sizes of the files, and opt-outs.
        model: the file of the language model, if the settings name one.
        harmful: the files of the word lists and classifiers of `settings.harmful`, in order.
        url_lists: the files of `settings.blocked_urls` and `settings.allowed_urls`, in order.
        private: file for removed documents with their masked texts, written if `keep_removed` is set.

    Raises:
        InputError: the files differ from the manifest, or are damaged and `quarantine` is off; the model is not the
            one of the settings, or does not know a language; too many documents state another license than
            their source.
    """
    content = json.loads(unit.read_text(encoding="utf-8"))
    raw = RawFiles.from_unit(settings, content, files)
    number, license = content["unit"], content["license"]
    language_model = _verify_identification_model(settings, model)

    def run_filters(chosen: RawFiles) -> list[PipelineStep]:
        texts = create_removed_text_writer(settings, private)
        return run_blocks(
            [
                *build_filter_pipeline(settings, chosen, content, language_model, harmful, url_lists, texts),
                KeptDocumentCollector(),
            ]
        )

    executed, quarantined = raw.run_undamaged(run_filters, quarantine=settings.quarantine)
    read_from = raw.summarize_files(quarantined)
    flagged = next(block.counts for block in executed if isinstance(block, HarmfulContentFilter))
    masked_fields = next(block.counts for block in executed if isinstance(block, MetadataMaskingStep))
    reader, collect = executed[0], executed[-1]
    rows = reader.removed.rows
    if reader.records_in != collect.kept + len(rows):
        raise RuntimeError(
            f"{settings.source}.{number}: {reader.records_in} documents in, {collect.kept} kept, "
            f"{len(rows)} removed: the counts do not add up"
        )
    check_license_differences(settings, license, rows, reader.records_in)
    of_unit: dict[str, Any] = {"source": settings.source, "unit": number}
    metadata = collect.documents.write(
        documents,
        {
            **of_unit,
            "stage": "filter",
            "documents_in": reader.records_in,
            "bytes_in": reader.bytes_in,
            "personal_data": dict(collect.personal_data),
            "flagged": flagged,
        },
    )
    kept_texts: dict[str, Any] = {}
    texts = reader.removed.texts
    if texts is not None:
        kept_texts = {"removed_texts": texts.close()}
        of_unit["samples"] = texts.samples()
    write_removed(removed, rows, {**of_unit, **read_from, "stage": "filter"})
    reasons = Counter(row["reason"] for row in rows)
    for one in quarantined:
        print(f"{settings.source}.{number}: nothing of {one.file} is used: {one.damage}", flush=True)
    print(f"{settings.source}.{number}: {collect.kept} of {reader.records_in} documents kept", flush=True)
    return {
        "documents_in": reader.records_in,
        "bytes_in": reader.bytes_in,
        "documents_out": collect.kept,
        "bytes_out": metadata["bytes"],
        "removed": dict(sorted(reasons.items())),
        "personal_data": dict(sorted(collect.personal_data.items())),
        "masked_fields": dict(sorted(masked_fields.items())),
        "dropped_lines": dict(sorted(collect.dropped_lines.items())),
        "flagged": flagged,
        **({"encodings": dict(sorted(reader.encodings.items()))} if reader.encodings else {}),
        **read_from,
        **kept_texts,
    }
