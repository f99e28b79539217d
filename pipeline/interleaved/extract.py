"""Makes interleaved documents of the web pages of one unit: their texts and images that the rules of a set keep."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.core.errors import InputError
from pipeline.core.url_hosts import request_key
from pipeline.corpus.documents import id_hash, make_non_nullable_fields, write_removed, write_table
from pipeline.corpus.filter import run_blocks
from pipeline.corpus.personal_data.metadata_masking import MetadataMasker, MetadataMaskingStep
from pipeline.corpus.personal_data.text_masking import mask_personal_data
from pipeline.corpus.raw_text_reader import RawTextReader
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.rights_filters import OptOutFilter, PageReservationFilter
from pipeline.corpus.rules.presets import FUNCTION_WORDS
from pipeline.corpus.text.language_identification import LanguageFilter
from pipeline.corpus.text.text_cleaning import TextCleaner
from pipeline.interleaved import image_rules
from pipeline.interleaved.page_files import ImageFile, PageFiles
from pipeline.interleaved.page_nodes import PAGE_END, PageImage, load_nodes
from pipeline.interleaved.settings import OPT_OUT_LIST, ExtractSettings, ListedFile
from pipeline.interleaved.text_rules import STOP_WORDS, count_paragraphs, filter_paragraphs, find_broken_rule
from pipeline.opt_out.lists import read_opt_out_list

IMAGE_COUNT = "image_count"  # reason for removing a document
OF_REMOVED_DOCUMENTS = "of_removed_documents"  # counts of images and paragraphs that no rule removed
NO_FILES: list[Path] = []
_STRING = pa.string()
IMAGE_METADATA = pa.struct(
    [
        *(pa.field(name, _STRING) for name in ("alt", "license", "sha256", "format")),
        *(pa.field(name, pa.int64()) for name in ("width", "height", "shown_width", "shown_height")),
    ]
)
# Of each document, `texts`, `images` (URLs) and `image_metadata` have the same length: of each place either a text, or
# an image with its metadata, and null for the other.
INTERLEAVED_SCHEMA = pa.schema(
    [
        *make_non_nullable_fields(id=_STRING, source=_STRING, language=_STRING, language_score=pa.float64()),
        *(pa.field(name, _STRING) for name in ("url", "date")),
        *make_non_nullable_fields(
            texts=pa.list_(_STRING), images=pa.list_(_STRING), image_metadata=pa.list_(IMAGE_METADATA)
        ),
    ]
)
EXTRACTED_SCHEMA = INTERLEAVED_SCHEMA.append(pa.field("url_hash", pa.uint64()))  # of the whole URL, which is masked


class GivenLists(NamedTuple):
    """The lists of words by language and kind, and which images are opted out.

    Attributes:
        images: by `request_key`.
        hosts: the opt-out list of the source, for hosts; that of a unit lacks hosts that its records do not name.
    """

    words: Mapping[str, Mapping[str, frozenset[str]]]
    images: frozenset[str]
    hosts: OptOutFilter | None


def read_lists(languages: list[str], listed: list[ListedFile], files: list[Path]) -> GivenLists:
    """Return the lists of the configuration; of languages without one, the function words as stop words."""
    words = {
        code: {STOP_WORDS: frozenset(FUNCTION_WORDS[code])} if code in FUNCTION_WORDS else {} for code in languages
    }
    images: frozenset[str] = frozenset()
    hosts = None
    for entry, file in zip(listed, files, strict=True):
        if entry.kind == OPT_OUT_LIST:
            hosts = OptOutFilter(read_opt_out_list(file).model_copy(update={"ids": [], "holders": []}))
            continue
        try:
            lines = {line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()} - {""}
        except UnicodeDecodeError:
            raise InputError(f"{file} is not UTF-8: convert this list of {entry.kind}") from None
        if entry.language:
            words.setdefault(entry.language, {})[entry.kind] = frozenset(map(str.lower, lines))
        else:
            images = frozenset(map(request_key, lines))
    return GivenLists(words, images, hosts)


class NodeReader(PipelineStep):  # type: ignore[misc]
    """Reads the nodes of each page, normalizes their texts, and makes the texts together that of the document."""

    type = "📖 - READER"
    name = "Nodes of pages"

    def __init__(self, settings: ExtractSettings) -> None:
        super().__init__()
        self._cleaner = TextCleaner(settings.normalization)

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for document in data:
            nodes = [
                self._cleaner.format(node).strip() if isinstance(node, str) else node
                for node in load_nodes(document.text)
            ]
            document.metadata["nodes"] = [node for node in nodes if node]
            document.text = join_texts(document.metadata["nodes"])
            yield document


def join_texts(nodes: Iterable[object]) -> str:
    """Return the texts of nodes, separated as paragraphs are, without ends of pages."""
    paragraphs = (paragraph for node in nodes if isinstance(node, str) for paragraph in node.split("\n\n"))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph != PAGE_END)


class InterleavedFilter(BaseFilter):  # type: ignore[misc]
    """Removes images and paragraphs by the rules of a set, and the documents that then break one.

    Attributes:
        images: the counts of images, by reason; `in` is all of them.
        paragraphs: the same of paragraphs.
    """

    name = "Images and paragraphs"

    def __init__(
        self,
        settings: ExtractSettings,
        lists: GivenLists,
        files: Mapping[str, ImageFile],
        exclusion_writer: RemovedDocuments | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        self._settings, self._lists, self._files = settings, lists, files
        self._masker = MetadataMasker(settings.personal_data)
        self.images: Counter[str] = Counter()
        self.paragraphs: Counter[str] = Counter()

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        rules, words = self._settings.rules, self._lists.words.get(document.metadata["language"], {})
        kept: list[str | tuple[PageImage, dict[str, Any]]] = []
        for node in document.metadata["nodes"]:
            if isinstance(node, str):
                if text := filter_paragraphs(node, rules.paragraphs, words, self.paragraphs):
                    kept.append(text)
                continue
            self.images["in"] += 1
            reason, metadata = self._describe(node)
            if reason is None:
                kept.append((node, metadata))
            else:
                self.images[reason] += 1
        document.metadata["nodes"] = kept
        document.text = join_texts(kept)
        number = sum(not isinstance(node, str) for node in kept)
        broken: tuple[str, float] | None = (IMAGE_COUNT, number)
        if rules.minimum_images <= number <= rules.maximum_images:
            broken = find_broken_rule(document.text, rules.documents, words)
        if broken is None:
            return True
        document.metadata["filter_value"] = f"{broken[1]:.6g}"
        return False, broken[0]

    def _describe(self, image: PageImage) -> tuple[str | None, dict[str, Any]]:
        """Return the reason for which an image is removed, if any, and its metadata."""
        file = self._files.get(request_key(image.url))
        reason, license = image_rules.find_right(image, file, self._is_opted_out, self._settings.allowed_licenses)
        if reason is None and self._masker.mask_text(image.url) != image.url:
            reason = image_rules.PERSONAL_DATA
        reason = reason or image_rules.find_broken_image_rule(image, file, self._settings.rules.images)
        alt = image.alt and mask_personal_data(image.alt, self._settings.personal_data)[0]
        width, height = (file.width, file.height) if file else (None, None)
        return reason, {
            "alt": alt,
            "license": license or self._masker.mask_text(image.license),
            "sha256": file and file.sha256,
            "format": file and file.format,
            "width": width,
            "height": height,
            "shown_width": image_rules.count_shown_pixels(image.width, width),
            "shown_height": image_rules.count_shown_pixels(image.height, height),
        }

    def _is_opted_out(self, url: str) -> bool:
        hosts, page = self._lists.hosts, Document("", "", metadata={"url": url})
        return request_key(url) in self._lists.images or bool(hosts and any(hosts.matching_entries(page)))


class InterleavedCollector(PipelineStep):  # type: ignore[misc]
    """Collects the rows of the documents that are kept, with their personal data replaced.

    Attributes:
        joined: the number of paragraphs fewer, because a replaced address began in one and ended in the next.
    """

    type = "💽 - WRITER"
    name = "Collect"

    def __init__(self, settings: ExtractSettings) -> None:
        super().__init__()
        self._kinds = settings.personal_data
        self.rows: list[dict[str, Any]] = []
        self.personal_data: Counter[str] = Counter()
        self.images = self.paragraphs = self.joined = 0

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for document in data:
            row = {name: document.metadata.get(name) for name in EXTRACTED_SCHEMA.names} | {"id": document.id}
            row |= {"texts": [], "images": [], "image_metadata": []}
            for node in document.metadata["nodes"]:
                if isinstance(node, str):
                    text, numbers = mask_personal_data(node, self._kinds)
                    self.personal_data.update(numbers)
                    self.paragraphs += count_paragraphs(text)
                    self.joined += count_paragraphs(node) - count_paragraphs(text)
                    place: tuple[Any, ...] = (text, None, None)
                else:
                    self.images += 1
                    place = (None, node[0].url, node[1])
                for name, value in zip(("texts", "images", "image_metadata"), place, strict=True):
                    row[name].append(value)
            self.rows.append(row)
            yield document


class UrlHasher(PipelineStep):  # type: ignore[misc]
    """Keeps the hash of the whole URL, because the URL itself loses its query, which may name a person."""

    type = "🔒 - PERSONAL DATA"
    name = "Hash URLs"

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for document in data:
            url = document.metadata["url"]
            document.metadata["url_hash"] = None if url is None else xxhash.xxh3_64_intdigest(url)
            yield document


def run(
    settings: ExtractSettings,
    *,
    unit: Path,
    files: list[Path],
    lists: list[Path] = NO_FILES,
    documents: Path,
    removed: Path,
) -> dict[str, Any]:
    """Write the interleaved documents of a unit and the removed pages; return counts by reason.

    Args:
        unit: the unit's file of the manifest: names and sizes of the files, and opt-outs.
        lists: the files of `settings.lists`, in order.

    Raises:
        InputError: the files differ from the manifest, are no web pages, are damaged and `quarantine` is off, or a
            file is larger than a unit.
    """
    content = json.loads(unit.read_text(encoding="utf-8"))
    given = read_lists(settings.languages, settings.lists, lists)
    number = content["unit"]

    def run_filters(raw: PageFiles) -> list[PipelineStep]:
        fields = MetadataMasker(settings.personal_data)
        excluded = RemovedDocuments(settings.source, "extract", fields, None)
        opt_outs = OptOutFilter.from_unit(content["opt_out"], excluded) if content["opt_out"] else None
        score = settings.rules.language_score
        return run_blocks(
            [
                RawTextReader(raw, excluded),
                *([opt_outs] if opt_outs else []),
                *([PageReservationFilter(excluded)] if settings.page_reservations else []),
                UrlHasher(),
                MetadataMaskingStep(fields),
                NodeReader(settings),
                LanguageFilter(dict.fromkeys(settings.languages, 0.0), excluded),  # decides which words are listed
                InterleavedFilter(settings, given, raw.read_images(), excluded),
                LanguageFilter(dict.fromkeys(settings.languages, score), excluded),
                InterleavedCollector(settings),
            ]
        )

    raw = PageFiles.from_unit(settings, content, files)
    raw.check_whole()
    executed, quarantined = raw.run_undamaged(run_filters, quarantine=settings.quarantine)
    reader, collected = executed[0], executed[-1]
    (rules,) = (block for block in executed if isinstance(block, InterleavedFilter))
    rows, removed_rows = collected.rows, reader.removed.rows
    if reader.records_in != len(rows) + len(removed_rows):
        raise RuntimeError(f"{settings.source}.{number}: {reader.records_in} pages in, and the counts do not add up")
    rows.sort(key=lambda row: (id_hash(row["id"]), row["id"]))
    counts: dict[str, Any] = {
        "documents": {"in": reader.records_in, **dict(sorted(Counter(r["reason"] for r in removed_rows).items()))},
        "images": _add_removed_documents(rules.images, collected.images),
        "paragraphs": _add_removed_documents(
            rules.paragraphs + Counter({image_rules.PERSONAL_DATA: collected.joined}), collected.paragraphs
        ),
    }
    of_unit = {"source": settings.source, "unit": number, "stage": "extract"}
    read_from = raw.summarize_files(quarantined)
    metadata = {**of_unit, **read_from, "counts": counts}
    write_table(documents, pa.Table.from_pylist(rows, schema=EXTRACTED_SCHEMA), metadata)
    write_removed(removed, removed_rows, {**of_unit, **read_from})
    for one in quarantined:
        print(f"{settings.source}.{number}: nothing of {one.file} is used: {one.damage}", flush=True)
    print(f"{settings.source}.{number}: {len(rows)} of {reader.records_in} pages kept", flush=True)
    return {
        "documents_out": len(rows),
        "images_out": collected.images,
        "paragraphs_out": collected.paragraphs,
        **counts,
        "personal_data": dict(sorted(collected.personal_data.items())),
        **read_from,
    }


def _add_removed_documents(counts: Counter[str], kept: int) -> dict[str, int]:
    """Return counts by reason, with what no rule removed, but was part of a removed document."""
    left = counts["in"] - sum(number for reason, number in counts.items() if reason != "in") - kept
    return {
        "in": counts["in"],
        **dict(sorted((counts - Counter({"in": counts["in"]})).items())),
        OF_REMOVED_DOCUMENTS: left,
    }
