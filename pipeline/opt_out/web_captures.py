"""Makes an opt-out list from robots.txt, ai.txt and tdmrep.json files that somebody fetched; it fetches nothing.

Captures are read from WARC files (such as the robotstxt archives of Common Crawl), JSON lines and Parquet with `url`,
`fetched`, `status` and `body`, and folders HOST/FILE.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.core.url_hosts import split_url
from pipeline.opt_out.lists import read_opt_out_list
from pipeline.sources.decompression import DamagedFile, DecompressedChunks, read_lines
from pipeline.sources.raw_documents import iso_date
from pipeline.sources.record_formats import split_format
from pipeline.sources.settings import OptOut
from pipeline.sources.web_reservations import ANY_AGENT, ReservationFile, WebReservation, robots_rules, tdm_rules

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
_PAGE = re.compile(rb"\s*<(?:!doctype|html|head|body|\?xml|script|meta)", re.IGNORECASE)


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
            yield Capture(url, date, status, body())


def _make_capture(row: Any, place: str) -> Capture:
    url, body, status = (row.get(key) for key in ("url", "body", "status")) if isinstance(row, dict) else (None,) * 3
    if not isinstance(url, str) or not isinstance(body, str | bytes | None):
        raise InputError(f"{place}: a capture needs url and body, and may have fetched and status: correct it")
    content = body.encode("utf-8", "replace") if isinstance(body, str) else body or b""
    if not str(200 if status is None else status).isdigit():
        raise InputError(f"{place}: status is {status!r}: write the number that the server answered with, such as 200")
    fetched = row.get("fetched")
    if fetched is not None and iso_date(str(fetched)) is None:
        raise InputError(f"{place}: fetched is {fetched!r}: write it as YYYY-MM-DD or 2024-05-02T10:00:00Z")
    return Capture(url, None if fetched is None else str(fetched), int(200 if status is None else status), content)


def _read_json_lines(path: Path, compression: str) -> Iterator[Capture]:
    for number, (_, line, _, _) in enumerate(
        read_lines(iter(DecompressedChunks(path, compression)), 8 * MAXIMUM_BYTES), 1
    ):
        place = f"{path}, line {number}"
        try:
            row = json.loads(line) if line else None
        except ValueError:
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
            yield Capture(f"https://{host}{place}", fetched, 200, path.read_bytes())


def read_captures(path: Path, fetched: str | None = None) -> Iterator[Capture]:
    """Yield the captures of a file or folder.

    Args:
        fetched: the date of files in folders, which do not say when they were fetched.

    Raises:
        InputError: the file is none of the formats, damaged, or has a row without URL.
    """
    if path.is_dir():
        yield from _read_folder(path, fetched)
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


def _asked_agents(rules: str, agents: Iterable[str], *, unnamed: bool) -> list[str]:
    """Return the agents that a robots.txt names; and `*` for all others, if they count."""
    named = {line.partition(":")[2].strip().lower() for line in rules.splitlines() if line.startswith("User")}
    listed = [*agents]
    found = [agent for agent in listed if agent.lower() in named]
    return [*found, ANY_AGENT] if unnamed and len(found) < len(listed) else found


def make_reservation(capture: Capture, agents: Iterable[str], *, unnamed: bool = True) -> WebReservation | None:
    """Return what a capture reserves; None for nothing, such as an error or a web page instead of the file."""
    parts = split_url(capture.url)
    file = PATHS.get(parts.rest.partition("?")[0])
    if file is None or capture.status != 200 or _PAGE.match(capture.body):
        return None
    body = capture.body[:MAXIMUM_BYTES].decode("utf-8", "replace")
    rules = tdm_rules(body) if file == "tdmrep.json" else robots_rules(body)
    asked = [] if file == "tdmrep.json" else _asked_agents(rules or "", agents, unnamed=unnamed or file == "ai.txt")
    if not rules or (file != "tdmrep.json" and not (asked and re.search(r"^Disallow: \S", rules, re.MULTILINE))):
        return None
    sha256 = hashlib.sha256(capture.body).hexdigest()
    return WebReservation(
        host=parts.host, file=file, url=capture.url, sha256=sha256, fetched=capture.fetched, agents=asked, rules=rules
    )


def _is_answer(status: int) -> bool:
    """Return whether the server said what the file holds, or that there is none (RFC 9309, section 2.3.1)."""
    return status == 200 or (400 <= status < 500 and status != 429)


def _order(capture: Capture) -> tuple[str, bool, bytes]:
    return capture.fetched or "", capture.status == 200, capture.body


def collect_reservations(
    paths: Iterable[Path],
    *,
    agents: Iterable[str] = AI_AGENTS,
    unnamed: bool = True,
    fetched: str | None = None,
    opt_out: Path | None = None,
) -> OptOut:
    """Return an opt-out list with the reservations of each host, by the last capture of each of its files.

    Args:
        agents: a URL is reserved if one of these may not fetch it.
        unnamed: whether the rules for `*` count for agents that a robots.txt does not name, as RFC 9309 says.
        opt_out: a list whose entries are kept.

    Raises:
        InputError: a file cannot be read, or there is no capture in all of them.
    """
    latest: dict[tuple[str, str], Capture] = {}
    for path in paths:
        for capture in read_captures(path, fetched):
            parts = split_url(capture.url)
            file = PATHS.get(parts.rest.partition("?")[0])
            if file is None or not _is_answer(capture.status):
                continue
            before = latest.get((parts.host, file))
            if before is None or _order(capture) > _order(before):
                latest[parts.host, file] = capture
    if not latest:
        raise InputError(
            "no robots.txt, ai.txt or tdmrep.json was found in these files: name files with captures of them"
        )
    listed = read_opt_out_list(opt_out) if opt_out else OptOut()
    listed_agents = [*agents]
    made = (make_reservation(capture, listed_agents, unnamed=unnamed) for _, capture in sorted(latest.items()))
    dates = [capture.fetched for capture in latest.values() if capture.fetched]
    return listed.model_copy(
        update={
            "date": listed.date or (iso_date(max(dates)) if dates else None),
            "reservations": [reservation for reservation in made if reservation],
        }
    )
