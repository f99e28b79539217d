"""The datatrove block that replaces personal data by markers: e-mail and IP addresses, BSN and IBAN numbers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from re import Match, Pattern

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from stdnum import iban
from stdnum.nl import bsn

from pipeline.corpus.settings import PersonalData

# Each expression begins at most once in a run of its own characters, so that long strings of code cost linear time.
_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![\w@-])")
_IPV4 = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?!\.?[\w-])")
# Only 2000::/3 is given to anyone; the path of a module, such as de::fa, is not.
_IPV6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{0,34}[0-9A-Fa-f](?![\w:])")
_VERSION = re.compile(r"\b(?:version|versie|release|build|section|paragraaf|artikel)", re.I)
_IP_CONTEXT = re.compile(r"\b(?:ip|ipv4|host|server|dns|whois|ping|inet)\b|\bip-?adres", re.I)
_IP_CONTEXT_CHARACTERS = 30
_BSN = re.compile(
    r"(?<![\w.,-])(?:\d{9}|\d{4}\.\d{2}\.\d{3}|\d{3}[ .]\d{3}[ .]\d{3}|\d{4} \d{2} \d{3})(?![\w-]|[.,]\d)"
)
_BSN_CONTEXT = re.compile(
    r"\b(?:bsn|burger ?service ?nummer|sofi-?nummer|persoonsnummer|citizen service number)(?:s|nummers?|-nummers?)?\b",
    re.I,
)
_BSN_CONTEXT_CHARACTERS = 60
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)")


def _replace(text: str, pattern: Pattern[str], marker: str, end: Callable[[Match[str]], int]) -> tuple[str, int]:
    """Replace each match up to `end(match)`, which is the match's start where it is no personal data."""
    pieces: list[str] = []
    last = number = 0
    for match in pattern.finditer(text):
        stop = end(match)
        if stop > match.start():
            pieces += [text[last : match.start()], marker]
            last, number = stop, number + 1
    return ("".join([*pieces, text[last:]]), number) if number else (text, 0)


def _email_end(match: Match[str]) -> int:
    return match.end()


def _public_ip_end(match: Match[str]) -> int:
    try:
        address = ipaddress.ip_address(match.group())
    except ValueError:
        return match.start()
    if not address.is_global or address.is_multicast:
        return match.start()
    if address.version == 4:
        # Four small numbers are nearly always the number of an article; a random address has them in 2 of 100 cases.
        before = match.string[max(0, match.start() - _IP_CONTEXT_CHARACTERS) : match.start()]
        small = max(address.packed) < 100
        if _VERSION.search(before) or (small and not _IP_CONTEXT.search(before)):
            return match.start()
    return match.end()


def _bsn_end(match: Match[str]) -> int:
    if not bsn.is_valid(match.group().replace(".", "")):
        return match.start()
    start = max(0, match.start() - _BSN_CONTEXT_CHARACTERS)
    near = match.string[start : match.start()] + " " + match.string[match.end() : match.end() + _BSN_CONTEXT_CHARACTERS]
    return match.end() if _BSN_CONTEXT.search(near) else match.start()


def _iban_end(match: Match[str]) -> int:
    """Return the end of the longest valid number: the next words may look like more of it, as in NL… 00 EUR."""
    found = match.group()
    while found:
        if iban.is_valid(found):
            return match.start() + len(found)
        found = found.rpartition(" ")[0]
    return match.start()


def mask(text: str, kinds: PersonalData) -> tuple[str, dict[str, int]]:
    """Return the text with personal data replaced by <IBAN>, <BSN>, <EMAIL> or <IP>, and how often each was."""
    counts: dict[str, int] = {}
    if kinds.iban:
        text, counts["iban"] = _replace(text, _IBAN, "<IBAN>", _iban_end)
    if kinds.bsn and _BSN_CONTEXT.search(text):
        text, counts["bsn"] = _replace(text, _BSN, "<BSN>", _bsn_end)
    if kinds.email and "@" in text:
        text, counts["email"] = _replace(text, _EMAIL, "<EMAIL>", _email_end)
    if kinds.ip:
        text, ipv4 = _replace(text, _IPV4, "<IP>", _public_ip_end)
        text, ipv6 = _replace(text, _IPV6, "<IP>", _public_ip_end)
        counts["ip"] = ipv4 + ipv6
    return text, {kind: number for kind, number in counts.items() if number}


class MaskPersonalData(PipelineStep):  # type: ignore[misc]
    """Replaces personal data by markers and counts it, per document in `personal_data` of the metadata.

    A BSN passes the eleven-test and has a word such as "burgerservicenummer" near it, an IBAN has the check digits and
    the form of its country. An IP address is public and follows no word such as "version"; four small numbers
    follow a word such as "server".
    """

    type = "🔒 - PERSONAL DATA"
    name = "Mask personal data"

    def __init__(self, kinds: PersonalData) -> None:
        super().__init__()
        self.kinds = kinds

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield every document, masked."""
        for document in data:
            with self.track_time():
                document.text, counts = mask(document.text, self.kinds)
                document.metadata["personal_data"] = counts
                for kind, number in counts.items():
                    self.stat_update(kind, value=number)
            yield document
