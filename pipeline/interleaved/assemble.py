"""Assembles a set of interleaved documents: without duplicates of images, pages and paragraphs, and with a card.

The order is that of OBELICS: images that are everywhere, pages of one URL, paragraphs that a domain repeats, pages with
the same images, then images twice in a page and paragraphs of invitations. Of pages that are alike the latest is kept.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
import yaml
from markupsafe import Markup

from pipeline.core import markup
from pipeline.core.errors import InputError
from pipeline.core.url_hosts import extract_host, request_key
from pipeline.corpus.documents import (
    encode_parquet_metadata,
    make_non_nullable_fields,
    read_file_metadata,
    read_row_groups,
)
from pipeline.corpus.raw_file_quarantine import check_damaged_share, sum_unit_reports
from pipeline.corpus.rules.presets import FUNCTION_WORDS
from pipeline.interleaved.extract import IMAGE_COUNT, INTERLEAVED_SCHEMA
from pipeline.interleaved.page_nodes import PAGE_END
from pipeline.interleaved.settings import AssembleSettings
from pipeline.interleaved.text_rules import COMMON_WORDS, FLAGGED_WORDS, STOP_WORDS, count_paragraphs, is_spam

# Reasons, in the order in which they apply.
FREQUENT_IMAGE: Final = "frequent_image"
SAME_URL: Final = "same_url"
REPEATED_IN_DOMAIN: Final = "repeated_in_domain"
NO_TEXT: Final = "no_text"
SAME_IMAGES: Final = "same_images"
TWICE_IN_PAGE: Final = "twice_in_page"
SPAM: Final = "spam_words"
OF_REMOVED_DOCUMENTS: Final = "of_removed_documents"

CARD = "interleaved_card.md.jinja"
REMOVED_SCHEMA = pa.schema(make_non_nullable_fields(id=pa.string(), source=pa.string(), reason=pa.string()))
_REPEATED_END = re.compile(rf"{PAGE_END}(\n\n{PAGE_END})+")
Hashes = npt.NDArray[np.uint64]


class Place(NamedTuple):
    """One place of a document: a text, or an image with its URL, metadata, and the hashes of its file and its URL.

    The hash of an unknown file is that of the URL.
    """

    text: str | None
    url: str | None = None
    metadata: dict[str, Any] | None = None
    keys: tuple[int, ...] = ()


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text)


def _contains(sorted_hashes: Hashes, value: int) -> bool:
    place = int(np.searchsorted(sorted_hashes, np.uint64(value)))
    return place < len(sorted_hashes) and int(sorted_hashes[place]) == value


def _repeated(hashes: list[Hashes], most: int) -> Hashes:
    """Return the hashes that occur more than so many times, sorted."""
    values, numbers = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]), return_counts=True)
    return np.asarray(values[numbers > most])


def _read_rows(path: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    for table in read_row_groups(path, columns):
        yield from table.to_pylist()


def _read_places(row: dict[str, Any]) -> list[Place]:
    places = []
    for text, url, metadata in zip(row["texts"], row["images"], row["image_metadata"], strict=True):
        if url is None:
            places.append(Place(text))
        else:
            key = request_key(url)
            places.append(Place(None, url, metadata, (_hash(metadata["sha256"] or key), _hash(key))))
    return places


def _paragraph_key(domain: str, paragraph: str) -> int:
    return _hash(f"{domain}\n\n{paragraph}")


def _domain(row: dict[str, Any]) -> str:
    return extract_host(row["url"]) or f"source {row['source']}"


def _merge_texts(places: list[Place]) -> list[Place]:
    """Return the places with neighboring texts joined, and without empty ones."""
    merged: list[Place] = []
    for place in places:
        if place.url is None and merged and merged[-1].url is None and place.text:
            merged[-1] = Place(f"{merged[-1].text}\n\n{place.text}")
        elif place.url is not None or place.text:
            merged.append(place)
    return merged


def _image_keys(places: list[Place], kind: int = 0) -> set[int]:
    return {place.keys[kind] for place in places if place.keys}


def _find_missing_part(places: list[Place], minimum_images: int) -> str | None:
    """Return why places are no interleaved document: too few images, or no text; None if they are one."""
    if len(_image_keys(places)) < minimum_images:
        return IMAGE_COUNT
    if not any(place.text and count_paragraphs(place.text) for place in places):
        return NO_TEXT
    return None


class SetAssembler:
    """Removes duplicates from the D documents of a set, which are read once for each kind of duplicate.

    Memory is 8 bytes for each paragraph, 16 for each image, and about 450 for each document.

    Attributes:
        reasons: by the number of a document, why it is removed; missing if it stays.
        images: the counts of removed images, by reason.
        paragraphs: the same of paragraphs.
    """

    def __init__(self, settings: AssembleSettings, files: list[Path]) -> None:
        self._settings, self._files = settings, files
        self.reasons: dict[int, str] = {}
        self.images: Counter[str] = Counter()
        self.paragraphs: Counter[str] = Counter()
        self._frequent = self._find_frequent_images()
        self._remove_pages_of_one_url()
        self._repeated = self._find_repeated_paragraphs()
        self._remove_pages_with_the_same_images()

    def _rows(self, columns: list[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and row of each document that was not removed yet."""
        rows = (row for path in self._files for row in _read_rows(path, columns))
        return ((number, row) for number, row in enumerate(rows) if number not in self.reasons)

    def _find_frequent_images(self) -> Hashes:
        keys = [
            np.array([key for place in _read_places(row) for key in {*place.keys}], np.uint64)
            for _, row in self._rows(["texts", "images", "image_metadata"])
        ]
        return _repeated(keys, self._settings.rules.images.maximum_occurrences)

    def _without_frequent_images(self, row: dict[str, Any]) -> list[Place]:
        places = _read_places(row)
        return [place for place in places if not any(_contains(self._frequent, key) for key in place.keys)]

    def _remove_pages_of_one_url(self) -> None:
        latest: dict[int, tuple[str, str, int]] = {}
        for number, row in self._rows():
            if row["url_hash"] is not None:
                self._keep_latest(latest, row["url_hash"], row, number, SAME_URL)
        for number, row in self._rows():
            if len(_image_keys(self._without_frequent_images(row))) < self._settings.rules.minimum_images:
                self.reasons[number] = IMAGE_COUNT

    def _keep_latest(
        self, latest: dict[int, tuple[str, str, int]], key: int, row: dict[str, Any], number: int, reason: str
    ) -> None:
        candidate = (row["date"] or "", row["id"], number)
        before = latest.setdefault(key, candidate)
        if before is not candidate:
            self.reasons[min(before, candidate)[2]] = reason
            latest[key] = max(before, candidate)

    def _find_repeated_paragraphs(self) -> Hashes:
        keys = [
            np.array(
                [
                    _paragraph_key(domain, paragraph)
                    for text in row["texts"]
                    for paragraph in (text or "").split("\n\n")
                    if paragraph not in ("", PAGE_END)
                ],
                np.uint64,
            )
            for _, row in self._rows(["url", "source", "texts"])
            for domain in [_domain(row)]
        ]
        return _repeated(keys, 1)

    def _clean(self, row: dict[str, Any]) -> list[Place]:
        """Return the places of a row without frequent images and repeated paragraphs."""
        domain, places = _domain(row), []
        for place in self._without_frequent_images(row):
            if place.text is not None:
                kept = [
                    paragraph
                    for paragraph in place.text.split("\n\n")
                    if paragraph == PAGE_END or not _contains(self._repeated, _paragraph_key(domain, paragraph))
                ]
                places.append(Place("\n\n".join(kept)))
            else:
                places.append(place)
        return _merge_texts(places)

    def _remove_pages_with_the_same_images(self) -> None:
        latest: dict[int, tuple[str, str, int]] = {}
        for number, row in self._rows():
            places = self._clean(row)
            if reason := _find_missing_part(places, self._settings.rules.minimum_images):
                self.reasons[number] = reason
                continue
            for keys in {tuple(sorted(_image_keys(places, kind))) for kind in (0, 1)} - {()}:
                self._keep_latest(latest, _hash(",".join(map(str, keys))), row, number, SAME_IMAGES)

    def _finish(self, places: list[Place]) -> list[Place]:
        """Return places without an image that occurs before, paragraphs of invitations, and repeated ends of pages."""
        seen: set[int] = set()
        finished: list[Place] = []
        for place in places:
            if place.text is None:
                if place.keys[0] not in seen:
                    finished.append(place)
                seen.add(place.keys[0])
                continue
            paragraphs = place.text.split("\n\n")
            kept = [one for one in paragraphs if one == PAGE_END or not is_spam(one, self._settings.rules.spam_words)]
            finished.append(Place("\n\n".join(kept)))
        merged = [
            place if place.text is None else Place(_REPEATED_END.sub(PAGE_END, place.text))
            for place in _merge_texts(finished)
        ]
        if merged and merged[-1].text is not None:
            merged[-1] = Place(merged[-1].text.removesuffix(PAGE_END).removesuffix("\n\n"))
        return _merge_texts(merged)

    def write(self, folder: Path) -> list[dict[str, Any]]:
        """Write the documents of each file of the set to the folder; return the removed ones."""
        removed: list[dict[str, Any]] = []
        number = -1
        for path in self._files:
            kept: list[dict[str, Any]] = []
            for row in _read_rows(path):
                number += 1
                all_places = _read_places(row)
                reason = self.reasons.get(number)
                places = [] if reason else self._finish(cleaned := self._clean(row))
                reason = reason or _find_missing_part(places, self._settings.rules.minimum_images)
                if reason:
                    removed.append({"id": row["id"], "source": row["source"], "reason": reason})
                    self._count(all_places, [], [], [])
                    continue
                self._count(all_places, self._without_frequent_images(row), cleaned, places)
                kept.append(
                    row
                    | {
                        "texts": [place.text for place in places],
                        "images": [place.url for place in places],
                        "image_metadata": [place.metadata for place in places],
                    }
                )
            known = {key: value for key, value in read_file_metadata(path).items() if key in ("source", "unit")}
            schema = INTERLEAVED_SCHEMA.with_metadata(encode_parquet_metadata(known))
            with pq.ParquetWriter(folder / path.name, schema, compression="zstd") as writer:
                if kept:  # `datasets` reads no row group without rows
                    writer.write_table(pa.Table.from_pylist(kept, schema=schema))
        return removed

    def _count(self, before: list[Place], left: list[Place], cleaned: list[Place], kept: list[Place]) -> None:
        """Count what each rule removed of one document, in order; without a document, all of it as that of one."""

        def images(places: list[Place]) -> int:
            return sum(place.url is not None for place in places)

        def paragraphs(places: list[Place]) -> int:
            return sum(count_paragraphs(place.text) for place in places if place.text)

        self.images["in"] += images(before)
        self.paragraphs["in"] += paragraphs(before)
        if not kept:
            self.images[OF_REMOVED_DOCUMENTS] += images(before)
            self.paragraphs[OF_REMOVED_DOCUMENTS] += paragraphs(before)
            return
        self.images[FREQUENT_IMAGE] += images(before) - images(left)
        self.images[TWICE_IN_PAGE] += images(left) - images(kept)
        self.paragraphs[REPEATED_IN_DOMAIN] += paragraphs(before) - paragraphs(cleaned)
        self.paragraphs[SPAM] += paragraphs(cleaned) - paragraphs(kept)


def _sum_counts(files: list[Path]) -> dict[str, Counter[str]]:
    """Return the counts of interleaved.extract over all units: of documents, images and paragraphs, by reason."""
    totals: dict[str, Counter[str]] = {kind: Counter() for kind in ("documents", "images", "paragraphs")}
    for path in files:
        for kind, counts in read_file_metadata(path)["counts"].items():
            totals[kind].update(counts)
    return totals


def _sum_read_files(settings: AssembleSettings, files: list[Path]) -> dict[str, dict[str, Any]]:
    """Return bytes on disk, bytes read and the damaged files of each source, which may not be too many."""
    units = [read_file_metadata(path) for path in files]
    read_from = {}
    for source in settings.sources:
        totals = sum_unit_reports(unit for unit in units if unit["source"] == source.name)
        check_damaged_share(source.name, totals, source.damaged_share)
        read_from[source.name] = totals
    return read_from


def _describe_stage(counts: Counter[str]) -> dict[str, Any]:
    removed = {reason: number for reason, number in sorted(counts.items()) if reason != "in" and number}
    return {"in": counts["in"], "removed": removed, "out": counts["in"] - sum(removed.values())}


def run(
    settings: AssembleSettings,
    *,
    extracted: list[Path],
    documents: Path,
    removed: Path,
    statistics: Path,
    card: Path,
) -> dict[str, Any]:
    """Write the documents of the set, the removed ones, the counts of every rule, and the card.

    Raises:
        InputError: the sources have no page, or one has more than `damaged_share` in damaged files.
    """
    files = sorted(extracted, key=lambda path: path.name)
    before = _sum_counts(files)
    if not before["documents"]["in"]:
        names = ", ".join(source.name for source in settings.sources)
        raise InputError(
            f"interleaved.{settings.name}.sources: {names} have no web page: name HTML files, or archives with "
            "responses of HTML (WET archives have none)"
        )
    read_from = _sum_read_files(settings, files)
    assembler = SetAssembler(settings, files)
    documents.mkdir()
    removed_rows = assembler.write(documents)
    table = pa.Table.from_pylist(sorted(removed_rows, key=lambda row: str(row["id"])), schema=REMOVED_SCHEMA)
    pq.write_table(table.replace_schema_metadata(encode_parquet_metadata({"stage": "assemble"})), removed)
    number_in = before["documents"]["in"] - sum(v for k, v in before["documents"].items() if k != "in")
    after = {
        "documents": Counter({"in": number_in, **Counter(row["reason"] for row in removed_rows)}),
        "images": assembler.images,
        "paragraphs": assembler.paragraphs,
    }
    stages = {
        kind: {"extract": _describe_stage(before[kind]), "assemble": _describe_stage(after[kind])} for kind in before
    }
    for kind, stage in stages.items():
        if stage["extract"]["out"] != stage["assemble"]["in"]:
            raise RuntimeError(f"{settings.name}: {kind} were lost between the steps: the counts do not add up")
    content = {"run": settings.run, "set": settings.name, "stages": stages, "read": read_from}
    statistics.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    _write_card(settings, stages, read_from, [f"documents/{path.name}" for path in files], card)
    counts = {kind: stage["assemble"]["out"] for kind, stage in stages.items()}
    print(f"{settings.name}: {counts['documents']} documents with {counts['images']} images", flush=True)
    return {**counts, "removed": stages["documents"]["assemble"]["removed"]}


def _write_card(
    settings: AssembleSettings, stages: dict[str, Any], read_from: dict[str, Any], names: list[str], card: Path
) -> None:
    front_matter = {
        "pretty_name": f"{settings.run}: interleaved documents {settings.name}",
        "language": settings.languages,
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": names}]}],
    }
    listed = {(entry.kind, entry.language) for entry in settings.lists} | {(STOP_WORDS, one) for one in FUNCTION_WORDS}
    content = {
        "settings": settings,
        "stages": stages,
        "read": read_from,
        "front_matter": Markup(yaml.safe_dump(front_matter, sort_keys=False, allow_unicode=True)),
        "rules": Markup(yaml.safe_dump(settings.rules.model_dump(mode="json"), sort_keys=False, allow_unicode=True)),
        "missing_lists": [
            f"{kind} for {language}"
            for kind in (STOP_WORDS, FLAGGED_WORDS, COMMON_WORDS)
            for language in settings.languages
            if (kind, language) not in listed
        ],
    }
    template = markup.template_environment(Path(__file__).parent, {}, html=False).get_template(CARD)
    card.write_text(template.render(content), encoding="utf-8", newline="\n")
