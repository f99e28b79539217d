"""Makes an opt-out list from robots.txt, ai.txt and tdmrep.json files that somebody fetched; it fetches nothing.

Captures are read from WARC files (such as the robotstxt archives of Common Crawl), JSON lines and Parquet with `url`,
`fetched`, `status` and `body`, and folders HOST/FILE.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.core.url_hosts import read_port, split_url
from pipeline.opt_out.lists import read_opt_out_list
from pipeline.sources.decompression import DamagedFile, DecompressedChunks, read_lines
from pipeline.sources.raw_documents import exact_text, iso_date
from pipeline.sources.record_formats import split_format
from pipeline.sources.settings import OptOut
from pipeline.sources.web_reservation_rules import ANY_AGENT, ReservationFile, WebReservation, robots_rules, tdm_rules

# Agents that gather text to train models, or by which a site forbids that use: those with this function in robots.json
# of github.com/ai-robots-txt/ai.robots.txt, commit 738c80df2169 of 2026-08-22. Agents that answer a user's question are
# left out.
AI_AGENTS = (
    *("AI2Bot", "Ai2Bot-Dolma", "anthropic-ai", "Applebot-Extended", "Bytespider", "CCBot", "ClaudeBot", "Cotoyogi"),
    *("cohere-training-data-crawler", "DeepSeekBot", "Diffbot", "FacebookBot", "FriendlyCrawler", "Google-Extended"),
    *("GPTBot", "ICC-Crawler", "Kangaroo Bot", "meta-externalagent", "PanguBot", "SBIntuitionsBot", "TikTokSpider"),
    *("Timpibot", "VelenPublicWebCrawler"),
)
PATHS: dict[str, ReservationFile] = {
    "/robots.txt": "robots.txt",
    "/ai.txt": "ai.txt",
    "/.well-known/ai.txt": "ai.txt",
    "/.well-known/tdmrep.json": "tdmrep.json",
}
MAXIMUM_BYTES = 500 * 1024  # of a file; RFC 9309 asks parsers to read that much
_COLUMNS = ("url", "fetched", "status", "body")
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!|\?xml|html|head|body|script|meta)", re.IGNORECASE)
_STATUS = re.compile(r"[0-9]{1,3}")


class Capture(NamedTuple):
    """An answer of a server to a request for one of `PATHS`."""

    url: str
    fetched: str | None
    status: int
    body: bytes


def _read_warc(path: Path, compression: str) -> Iterator[Capture]:
    from pipeline.sources.web_pages import read_responses  # a second to import

    for url, date, status, body in read_responses(iter(DecompressedChunks(path, compression)), path, MAXIMUM_BYTES):
        if split_url(url).rest.partition("?")[0] in PATHS:
            yield Capture(url, date if iso_date(date) else None, status, body())


def _check_date(fetched: object, place: str) -> str | None:
    """Return a date as text.

    Raises:
        InputError: it is none.
    """
    if fetched is not None and iso_date(str(fetched)) is None:
        raise InputError(f"{place} is {fetched!r}: write it as YYYY-MM-DD or 2024-05-02T10:00:00Z")
    return None if fetched is None else str(fetched)


def _make_capture(row: Any, place: str) -> Capture:
    url, body, status = (row.get(key) for key in ("url", "body", "status")) if isinstance(row, dict) else (None,) * 3
    if not isinstance(url, str) or not isinstance(body, str | bytes | None):
        raise InputError(f"{place}: a capture needs url and body, and may have fetched and status: correct it")
    content = body.encode("utf-8", "replace") if isinstance(body, str) else body or b""
    stated = str(200 if status is None else status)
    if not _STATUS.fullmatch(stated):
        raise InputError(f"{place}: status is {status!r}: write the number that the server answered with, such as 200")
    return Capture(url, _check_date(row.get("fetched"), f"{place}: fetched"), int(stated), content)


def _read_json_lines(path: Path, compression: str) -> Iterator[Capture]:
    for number, (_, line, _, _) in enumerate(
        read_lines(iter(DecompressedChunks(path, compression)), 8 * MAXIMUM_BYTES), 1
    ):
        place = f"{path}, line {number}"
        try:
            row = json.loads(line) if line else None
        except (ValueError, RecursionError):
            raise InputError(f"{place} is no JSON: correct it") from None
        if row is not None:
            yield _make_capture(row, place)


def _read_parquet(path: Path) -> Iterator[Capture]:
    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
            for batch in file.iter_batches(1000, columns=columns):
                for row in batch.to_pylist():
                    yield _make_capture(row, f"{path}, {row.get('url')}")
    except (pa.ArrowException, OSError):
        raise InputError(f"{path} is truncated or no Parquet file: fetch the file again") from None


def _read_folder(folder: Path, fetched: str | None) -> Iterator[Capture]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name in ("robots.txt", "ai.txt", "tdmrep.json"):
            host = path.parent.parent.name if path.parent.name == ".well-known" else path.parent.name
            place = "/.well-known/tdmrep.json" if path.name == "tdmrep.json" else f"/{path.name}"
            with path.open("rb") as file:
                yield Capture(f"https://{host}{place}", fetched, 200, file.read(MAXIMUM_BYTES))


def read_captures(path: Path, fetched: str | None = None) -> Iterator[Capture]:
    """Yield the captures of a file or folder.

    Args:
        fetched: the date of files in folders, which do not say when they were fetched.

    Raises:
        InputError: the file is none of the formats, damaged, or has a row without URL, or the date is none.
    """
    if path.is_dir():
        yield from _read_folder(path, _check_date(fetched, "--fetched"))
        return
    kind, compression = split_format(path, path.name)
    try:
        if kind == "archive":
            yield from _read_warc(path, compression)
        elif kind == "json":
            yield from _read_json_lines(path, compression)
        elif path.suffix == ".parquet":
            yield from _read_parquet(path)
        else:
            raise InputError(f"{path}: captures are .warc, .jsonl or .parquet files, or a folder with HOST/robots.txt")
    except DamagedFile as damaged:
        raise InputError(str(damaged)) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}: check the path") from None


def make_reservation(capture: Capture, agents: Iterable[str], *, unnamed: bool = True) -> WebReservation | None:
    """Return what a capture reserves; None for nothing, such as an error."""
    url = exact_text(capture.url) or ""
    parts = split_url(url)
    file = PATHS.get(parts.rest.partition("?")[0])
    if file is None or capture.status != 200:
        return None
    content = capture.body[:MAXIMUM_BYTES]
    body = content.decode("utf-8", "replace")
    asked: list[str] = []
    if file == "tdmrep.json":
        rules = tdm_rules(body)
    else:
        listed = [*agents]
        named, rules = robots_rules(body, listed)
        asked = [agent for agent in listed if agent.lower() in named]
        if (unnamed or file == "ai.txt") and len(asked) < len(listed):
            asked.append(ANY_AGENT)
        if not asked or not re.search(r"^Disallow: \S", rules, re.MULTILINE):
            return None
    if not rules:
        return None
    sha256 = hashlib.sha256(content).hexdigest()
    return WebReservation(
        host=parts.host,
        file=file,
        url=url,
        sha256=sha256,
        fetched=exact_text(capture.fetched),
        agents=asked,
        rules=rules,
    )


def _is_answer(status: int) -> bool:
    """Return whether the server said what the file holds, or that there is none (RFC 9309, section 2.3.1)."""
    return status == 200 or (400 <= status < 500 and status != 429)


def _address(url: str) -> tuple[str, str, str]:
    """Return host, port and path of a file: http and https have one address."""
    parts = split_url(url)
    return parts.host, read_port(parts), parts.rest.partition("?")[0]


def _sortable_date(fetched: str | None) -> str:
    """Return a time in UTC, however it is written; a date sorts before the times of its day, and no date before all."""
    try:
        time = datetime.fromisoformat((fetched or "").strip())
    except ValueError:
        return iso_date(fetched) or ""
    if iso_date(fetched) == (fetched or "").strip():
        return time.date().isoformat()
    return (time.astimezone(UTC) if time.tzinfo else time).replace(tzinfo=None).isoformat(timespec="microseconds")


class _HostReservation(NamedTuple):
    """What is kept of an answer: its date as `_sortable_date`, and what it reserves."""

    date: str
    reservation: WebReservation | None


def _order(answer: _HostReservation) -> tuple[str, ...]:
    """Return what sorts answers of one address: of one time, what reserves counts."""
    return (answer.date, *((answer.reservation.sha256, answer.reservation.url) if answer.reservation else ()))


def collect_reservations(
    paths: Iterable[Path],
    *,
    agents: Iterable[str] = AI_AGENTS,
    unnamed: bool = True,
    fetched: str | None = None,
    opt_out: Path | None = None,
) -> OptOut:
    """Return an opt-out list with the reservations of each host, by the last answer at each address of a file.

    Where a host has several addresses of a file, such as another port or the two of ai.txt, each reserves. An answer
    replaces that of a given list, unless the list's is known to be later.

    Args:
        agents: a URL is reserved if one of these may not fetch it.
        unnamed: whether the rules for `*` count for agents that a robots.txt does not name, as RFC 9309 says.
        opt_out: a list to add to.

    Raises:
        InputError: a file cannot be read, or there is no capture in all of them.
    """
    listed = read_opt_out_list(opt_out) if opt_out else OptOut()
    listed_agents = [*agents]
    latest: dict[tuple[str, str, str], _HostReservation] = {}
    is_read = False
    for capture in (capture for path in paths for capture in read_captures(path, fetched)):
        address = _address(capture.url)
        if address[2] in PATHS and _is_answer(capture.status):
            is_read = True
            if capture.status == 200 and _PAGE.match(capture.body):
                continue  # in place of the file; it says nothing
            reservation = make_reservation(capture, listed_agents, unnamed=unnamed)
            answer = _HostReservation(_sortable_date(capture.fetched), reservation)
            latest[address] = max(latest.get(address, answer), answer, key=_order)
    if not is_read:
        raise InputError(
            "no robots.txt, ai.txt or tdmrep.json was found in these files: name files with captures of them"
        )
    for one in listed.reservations:
        address, earlier = (one.host, *_address(one.url)[1:]), _HostReservation(_sortable_date(one.fetched), one)
        latest_answer = latest.setdefault(address, earlier)
        if latest_answer.date and latest_answer.date < earlier.date:
            latest[address] = earlier
    dates = [answer.date[:10] for answer in latest.values()]
    made = sorted((answer for answer in latest.values() if answer.reservation), key=_order)
    kept = {(one.host, one.file, one.rules, *one.agents): one for _, one in made if one}
    return listed.model_copy(
        update={
            "date": max([listed.date or "", *dates]) or None,
            "reservations": sorted(kept.values(), key=lambda one: (one.host, one.file, one.url)),
        }
    )
