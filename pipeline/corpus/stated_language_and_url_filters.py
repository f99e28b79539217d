"""The datatrove filters that judge a document by what its source states about it, before its text is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import xxhash
from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.url_hosts import domain_suffixes, split_url
from pipeline.corpus.documents import LANGUAGE_DIFFERS, URL_BLOCKED, URL_NOT_ALLOWED
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.settings import FilterSettings, UrlListFile
from pipeline.corpus.text.language_codes import states_other_language
from pipeline.sources.settings import normalize_domain

MAXIMUM_INVALID_SHARE = 0.01  # of the lines of a list; with more it is no list of domains and addresses
MAXIMUM_BEGINNINGS, MAXIMUM_CHARACTERS = 128, 4096  # of an address, that are looked up besides all of it
CACHED_FILES = 64  # of one process, which reads a list once for all documents
_NORMAL_DOMAIN = re.compile(
    rb"[a-z0-9_-][a-z0-9._-]*\.[a-z][a-z0-9-]*\n"
)  # most lines of a list: the same when normalized


def _normalize_address(host: str, rest: str) -> str:
    """Return host and path without `www.`, fragment, percent-encoding and final slash."""
    path = unquote(rest.partition("#")[0]).rstrip("/")
    return f"{host.removeprefix('www.')}{path}"


def normalize_entry(line: str) -> str:
    """Return a line of a list in the form in which documents are looked up: a domain, or a host and a path.

    Raises:
        ValueError: it is neither.
    """
    url = split_url(line)
    if not url.rest.rstrip("/"):
        return normalize_domain(url.host if url.prefix or url.rest else line)
    normalize_domain(url.host)
    return _normalize_address(url.host, url.rest)


def address_candidates(url: str) -> Iterator[str]:
    """Yield the entries that an address matches: its host, the domains that it is in, and the beginnings of its path.

    A beginning ends before a slash or a question mark. Those of the first MAXIMUM_CHARACTERS count, at most
    MAXIMUM_BEGINNINGS, and the complete address, so that thousands of slashes take no quadratic memory.
    """
    parts = split_url(url)
    yield from domain_suffixes(parts.host)
    address = _normalize_address(parts.host, parts.rest)
    marks = re.compile(r"[/?]").finditer(address, 0, MAXIMUM_CHARACTERS)
    ends = [mark.start() for mark in islice(marks, MAXIMUM_BEGINNINGS + 1)]
    for end in ends[1:]:  # the first one ends the host
        yield address[:end]
    if ends:
        yield address


class UrlList:
    """The domains, with all subdomains, and addresses, with all below them, of one file.

    An entry is a domain (`voorbeeld.nl`) or an address (`voorbeeld.nl/map`, with or without scheme); `#` begins a
    comment line. Hosts are compared as browsers read them, and without `www.` where a path follows.

    Raises:
        InputError: the file cannot be read, or more than MAXIMUM_INVALID_SHARE of its lines are neither.
    """

    def __init__(self, path: Path) -> None:
        self.invalid: list[int] = []
        """Numbers of the lines that are left out, from 1."""
        try:
            with path.open("rb") as stream:
                self._hashes: npt.NDArray[np.uint64] = np.fromiter(self._hash_lines(stream), dtype=np.uint64)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}): restore the file or its permissions") from None
        if len(self.invalid) > MAXIMUM_INVALID_SHARE * (self.entry_count + len(self.invalid)):
            raise InputError(
                f"{path} is no list of domains and addresses: {len(self.invalid)} of its lines are neither, first line "
                f"{self.invalid[0]}; write one per line, like voorbeeld.nl or voorbeeld.nl/map"
            )
        self._hashes.sort()

    @property
    def entry_count(self) -> int:
        """The number of domains and addresses, also of those that are there twice."""
        return len(self._hashes)

    def _hash_lines(self, lines: Iterator[bytes]) -> Iterator[int]:
        is_normal, get_hash = _NORMAL_DOMAIN.fullmatch, xxhash.xxh3_64_intdigest
        for number, line in enumerate(lines, 1):
            if is_normal(line):
                yield get_hash(line[:-1])
            elif (entry := line.strip()) and not entry.startswith(b"#"):
                try:
                    yield get_hash(normalize_entry(entry.decode("utf-8-sig")))
                except ValueError:  # also of an invalid encoding
                    self.invalid.append(number)

    def find_entry(self, candidates: list[str]) -> str | None:
        wanted = np.array([xxhash.xxh3_64_intdigest(candidate) for candidate in candidates], dtype=np.uint64)
        places = np.searchsorted(self._hashes, wanted)
        for candidate, value, place in zip(candidates, wanted, places, strict=True):
            if place < len(self._hashes) and self._hashes[place] == value:
                return candidate
        return None


@lru_cache(CACHED_FILES)
def read_url_list(path: Path, sha256: str) -> UrlList:
    """Return the list of a file, which is read once by a process.

    Raises:
        InputError: the file has another sha256, or is no such list.
    """
    if hash_file(path) != sha256:
        raise InputError(f"{path} changed after the run was planned: run snakemake again")
    url_list = UrlList(path)
    if url_list.invalid:
        print(
            f"{path}: {len(url_list.invalid)} lines are no domain and no address, first line {url_list.invalid[0]}",
            flush=True,
        )
    return url_list


SHOWN_CHARACTERS = 40


class StatedLanguageFilter(BaseFilter):  # type: ignore[misc]
    """Removes documents that state another language than that of their source; the value is what they state.

    A document that states no language, or an unknown one, is kept: its text decides later.

    Args:
        language: the language of the source.
    """

    name = "Stated language"

    def __init__(self, language: str, exclusion_writer: RemovedDocuments | None = None) -> None:
        super().__init__(exclusion_writer)
        self.language = language

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        written = document.metadata["own_language"] or ""
        if not states_other_language(written, self.language):
            return True
        document.metadata["filter_value"] = written[:SHOWN_CHARACTERS]
        return False, LANGUAGE_DIFFERS


class UrlListFilter(BaseFilter):  # type: ignore[misc]
    """Removes documents whose address is on a block list, or, if there are allow lists, on none of them.

    The value is the list and its entry, or the host that is on no allow list. A document without an address is on no
    list.

    Args:
        paths: the files of the block lists, then those of the allow lists.

    Raises:
        InputError: a file has another sha256 than the settings, or is no list of domains and addresses.
    """

    name = "URL lists"

    def __init__(
        self, settings: FilterSettings, paths: list[Path], exclusion_writer: RemovedDocuments | None = None
    ) -> None:
        super().__init__(exclusion_writer)
        files = [*zip([*settings.blocked_urls, *settings.allowed_urls], paths, strict=True)]
        self._blocked, self._allowed = files[: len(settings.blocked_urls)], files[len(settings.blocked_urls) :]

    def _find_entry(self, files: list[tuple[UrlListFile, Path]], candidates: list[str]) -> str | None:
        for file, path in files:
            if entry := read_url_list(path, file.sha256).find_entry(candidates):
                return f"{file.name}: {entry}"
        return None

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        candidates = list(address_candidates(document.metadata["url"] or ""))
        if entry := self._find_entry(self._blocked, candidates):
            document.metadata["filter_value"] = entry
            return False, URL_BLOCKED
        if not self._allowed or self._find_entry(self._allowed, candidates):
            return True
        document.metadata["filter_value"] = candidates[0] if candidates else "it has none"
        return False, URL_NOT_ALLOWED
