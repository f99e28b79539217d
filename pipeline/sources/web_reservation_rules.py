"""Reservations of rights that hosts publish in robots.txt, ai.txt and tdmrep.json, and which URLs they cover.

- robots.txt: RFC 9309. A URL is reserved if a listed agent may not fetch it.
- ai.txt: the same grammar, for uses by AI alone, so that `*` counts; it names types of files (`Disallow: *.txt`).
- tdmrep.json: the TDM Reservation Protocol of a W3C community group (2024-05-10): the first rule whose `location`
  matches.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from pydantic import Field, field_validator

from pipeline.core.settings import Settings
from pipeline.core.url_hosts import normalize_host, split_url

if TYPE_CHECKING:
    from protego import Protego

ReservationFile = Literal["robots.txt", "ai.txt", "tdmrep.json"]
ANY_AGENT = "*"
PARSED_FILES = 10_000  # that are held in memory
# A page at /news/1 is text too, so ai.txt is also asked for files that it can name by their type.
_TEXT_FILES = ("/page.html", "/page.txt")
_NO_AI = re.compile(r"(?:^|[\s,:])noai(?:$|[\s,])", re.IGNORECASE)
_NO_IMAGE_AI = re.compile(r"(?:^|[\s,:])noimageai(?:$|[\s,])", re.IGNORECASE)
STATES_TDM = "tdm-reservation"
_PAGE_SIGNALS = (STATES_TDM, "noai")
_ROBOTS_LINE = re.compile(r"[ \t]*(user-?agent|allow|disallow)[ \t]*:[ \t]*([^#\r\n]*)", re.IGNORECASE)


class HostRules(Settings):
    """What decides in a file by which a host reserves rights: its rules without comments."""

    host: str
    file: ReservationFile
    agents: list[str] = Field(
        default=[], description="the agents that are asked about; * for those that it does not name"
    )
    rules: str

    @field_validator("host")
    @classmethod
    def _normal(cls, host: str) -> str:
        return normalize_host(host)

    @field_validator("agents")
    @classmethod
    def _ordered(cls, agents: list[str]) -> list[str]:
        return sorted(set(agents))


class WebReservation(HostRules):
    """A file by which a host reserves rights, with the evidence: where it was, and when it was fetched."""

    url: str = Field(description="where the file was")
    sha256: str = Field(description="of the file as it was fetched; of its first 500 KiB, if it is larger")
    fetched: str | None = Field(default=None, description="when, ISO 8601")


def robots_rules(body: str, agents: Iterable[str]) -> tuple[set[str], str]:
    """Return the agents that a robots.txt or ai.txt names, and its permissions and prohibitions for them.

    Other agents than those given and `*` are left out, as are comments and other lines.
    """
    wanted = {ANY_AGENT, *map(str.lower, agents)}
    named: set[str] = set()
    rules: list[str] = []
    is_kept = are_agents = False
    for match in map(_ROBOTS_LINE.match, re.split(r"[\r\n]+", body.removeprefix("\ufeff"))):
        if not match:
            continue
        field, value = match[1].capitalize(), match[2].strip()
        if field.startswith("User"):
            value = value.partition("/")[0].strip()  # GPTBot of GPTBot/1.1 (RFC 9309, section 2.2.1)
            is_listed = value.lower() in wanted
            is_kept, are_agents = is_listed or (is_kept and are_agents), True  # an agent after rules begins a group
            named.update([value.lower()] * is_listed)
        else:
            is_listed, are_agents = is_kept, False
        if is_listed:
            rules.append(f"{field}: {value}")
    return named, "\n".join(rules)


def tdm_rules(body: str) -> str | None:
    """Return the rules of a tdmrep.json as JSON, pairs of location and reservation; None if it has none.

    A rule with another reservation than 0 or 1 is an error of the protocol and does not count.
    """
    try:
        content = json.loads(body.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    rules = [
        (rule["location"].encode("utf-8", "replace").decode(), int(rule["tdm-reservation"]))
        for rule in (content if isinstance(content, list) else [])
        if isinstance(rule, dict)
        and isinstance(rule.get("location"), str)
        and str(rule.get("tdm-reservation")) in ("0", "1")
    ]
    return json.dumps(rules, ensure_ascii=False) if any(reserved for _, reserved in rules) else None


@lru_cache(PARSED_FILES)
def _parse_robots(rules: str) -> Protego:
    from protego import Protego

    return Protego.parse(rules)


@lru_cache(PARSED_FILES)
def _parse_tdm(rules: str) -> list[tuple[list[str], str, bool]]:
    """Return for each rule the texts between the `*` of its location, the location, and whether it reserves."""
    return [
        ([unquote(text) for text in location.removesuffix("$").split("*")], location, bool(reserved))
        for location, reserved in json.loads(rules)
    ]


def _matches_location(texts: list[str], path: str, *, is_whole: bool) -> bool:
    """Return whether a path begins with these texts, or is them, with anything between them.

    Each is taken at its first place: a regular expression would try them all, for hours on the `/*a*a*a*b` of a host.
    """
    first, *others = texts
    if not path.startswith(first):
        return False
    end = len(first)
    last = others.pop() if others and is_whole else None
    for text in others:
        place = path.find(text, end)
        if place < 0:
            return False
        end = place + len(text)
    if last is not None:
        return path.endswith(last) and end + len(last) <= len(path)
    return not is_whole or end == len(path)


def is_reserved(stated: str | None) -> bool:
    """Return whether what a page states reserves rights; a TDM reservation of 0 grants them."""
    return stated is not None and not stated.endswith(": 0")


def read_page_reservation(headers: Iterable[tuple[str, str]], page: str = "") -> str | None:
    """Return the HTTP header or meta tag by which a page reserves rights, or says that it does not; None without one.

    A meta tag `tdm-reservation` supersedes the header, and other values than 0 and 1 do not count (TDM Reservation
    Protocol). `noai` of X-Robots-Tag and of `<meta name="robots">` reserves besides; `noimageai` says nothing of text.
    """
    stated: dict[str, str] = {}
    named = [("header", name.lower(), value) for name, value in headers]
    lowered = page.lower()
    if any(signal in lowered for signal in _PAGE_SIGNALS):  # few pages are parsed for it
        named += [
            ("meta", meta.get("name", "").strip().lower(), meta.get("content", "")) for meta in _read_meta_tags(page)
        ]
    for place, name, value in named:
        if name == "tdm-reservation" and value.strip() in ("0", "1"):
            stated["tdm"] = f"{place} tdm-reservation: {value.strip()}"
        elif (place, name) in (("header", "x-robots-tag"), ("meta", "robots")) and _NO_AI.search(value):
            stated["noai"] = f"{place} {name}: noai"
    return stated.get("noai") or stated.get("tdm")


def read_image_reservation(headers: Iterable[tuple[str, str]], page: str = "") -> str | None:
    """Return the `noimageai` of the header X-Robots-Tag or of `<meta name="robots">`; None without one.

    What reserves the page reserves its images too, and is read by `read_page_reservation`.
    """
    named = [("header", name.lower(), value) for name, value in headers]
    if "noimageai" in page.lower():
        named += [
            ("meta", meta.get("name", "").strip().lower(), meta.get("content", "")) for meta in _read_meta_tags(page)
        ]
    for place, name, value in named:
        if (place, name) in (("header", "x-robots-tag"), ("meta", "robots")) and _NO_IMAGE_AI.search(value):
            return f"{place} {name}: noimageai"
    return None


def _read_meta_tags(page: str) -> list[dict[str, str]]:
    from trafilatura import load_html  # half a second to import

    tree = load_html(page)
    return [] if tree is None else [{**meta.attrib} for meta in tree.iter("meta")]


class WebReservations:
    """The reservations of hosts, asked by URL. A host is compared as browsers read it, and has no subdomains."""

    def __init__(self, reservations: Iterable[HostRules]) -> None:
        self._by_host: dict[str, list[HostRules]] = defaultdict(list)
        for reservation in reservations:
            self._by_host[reservation.host].append(reservation)

    def __bool__(self) -> bool:
        return bool(self._by_host)

    def matching_entries(self, url: str | None, *, is_tdm_stated: bool = False) -> Iterator[str]:
        """Yield each file that reserves a URL, with the agents, or the rule, that decide.

        Args:
            is_tdm_stated: the page itself states a TDM reservation of 0 or 1, which supersedes tdmrep.json.
        """
        parts = split_url(url or "")
        path = "/" + parts.rest.partition("#")[0].lstrip("/")
        decided_by: dict[str, list[str]] = defaultdict(list)  # by the file, of which a host may have several
        for reservation in self._by_host.get(parts.host, ()):
            if reservation.file != "tdmrep.json":
                reasons = _refused_agents(reservation, path)
            elif is_tdm_stated:
                reasons = []
            else:
                reasons = _reserving_location(reservation, path)
            decided_by[reservation.file] += reasons
        for file, deciding in decided_by.items():
            if deciding:
                yield f"{file} {parts.host}: {', '.join(dict.fromkeys(deciding))}"


def _refused_agents(reservation: HostRules, path: str) -> list[str]:
    robots = _parse_robots(reservation.rules)
    paths = (path, *_TEXT_FILES) if reservation.file == "ai.txt" else (path,)
    urls = [f"https://{reservation.host}{path}" for path in paths]
    return [agent for agent in reservation.agents if not all(robots.can_fetch(url, agent) for url in urls)]


def _reserving_location(reservation: HostRules, path: str) -> list[str]:
    unquoted = unquote(path)
    for texts, location, is_reserved in _parse_tdm(reservation.rules):
        if _matches_location(texts, unquoted, is_whole=location.endswith("$")):
            return [location] if is_reserved else []
    return []
