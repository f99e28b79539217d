"""E-mail and IP addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from re import Match, Pattern

from pipeline.corpus.personal_data.found import Found, before
from pipeline.corpus.personal_data.sieve import Places, matches

_LOCAL_BACKWARDS = re.compile(r"[\w%+-][\w.%+'-]{0,63}")
_AT = re.compile(r"@")
_SPELLED_AT = re.compile(r"[\[({](?:at|AT|apenstaart(?:je)?)[\])}][ ]?")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![^\W_]|@)")
_SPELLED_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?[ ]?(?:\.|[\[({](?:dot|punt)[\])}])[ ]?){1,8}[a-z]{2,24}\b"
)
_SPELLED_DOT = re.compile(r"[ ]?[\[({](?:dot|punt)[\])}][ ]?")
_LOCAL_CHARACTERS = 66
_LOCAL_CHARACTER = re.compile(r"[\w.%+-]")

_IPV4 = re.compile(r"[0-9](?<![\w.-][0-9])\d{0,2}(?:\.\d{1,3}){3}(?!\.?[\w-])")
# Only 2000::/3 is given to anyone; the path of a module, such as de::fa, is not.
_IPV6 = re.compile(r"[23](?<![\w:.][23])[0-9A-Fa-f]{3}:[0-9A-Fa-f:]{0,34}[0-9A-Fa-f](?![\w:])")
# Python knows the others; this one since 3.12.7.
_DOCUMENTATION = ipaddress.ip_network("3fff::/20")
_VERSION = re.compile(r"\b(?:version|versie|release|build|section|paragraaf|artikel)")
# Right behind one of these it is that number, whatever stands before.
_NUMBERED = re.compile(r"(?:artikel(?:en)?|voorschrift|paragraaf|section|versie|version|release|build)[ ]\Z")
_SENTENCE_END = re.compile(r"\n|[.!?] ")
_IP_CONTEXT = re.compile(
    r"\b(?:ip|ipv4|host|server|dns|whois|ping|inet|ssh|proxy|vpn|firewall|router|client|login)\b|\bip-?adres|"
    r"\badres\b|\baddress\b|\binge?log|logged|netwerk|network|verbinding|connect|verzoek|request"
)
_IP_CONTEXT_CHARACTERS = 40


def _emails(text: str, at_signs: Iterable[Match[str]], host: Pattern[str]) -> Iterator[Found]:
    last = 0
    for at in at_signs:
        place = at.start()
        if at.group() != "@" and text[place - 1 : place] == " ":
            place -= 1
        backwards = text[max(last, place - _LOCAL_CHARACTERS) : place][::-1]
        local, domain = _LOCAL_BACKWARDS.match(backwards), host.match(text, at.end())
        if local is None or domain is None:
            continue
        written = local.group()[::-1].lstrip("'")
        begin = place - len(written)
        if begin > last and _LOCAL_CHARACTER.match(text, begin - 1):  # longer than 64 characters
            continue
        last = domain.end()
        yield Found(begin, last, "email", f"{written}@{_SPELLED_DOT.sub('.', domain.group())}".lower().replace(" ", ""))


def emails(text: str, places: Places) -> Iterator[Found]:
    """Yield e-mail addresses, also those written with [at] or (at)."""
    yield from _emails(text, matches(_AT, text, places.at_sign), _DOMAIN)
    yield from _emails(text, matches(_SPELLED_AT, text, places.spelled_at_sign), _SPELLED_DOMAIN)


def ip_addresses(text: str, places: Places) -> Iterator[Found]:
    """Yield public addresses: private and reserved ranges, versions and numbers of articles are not.

    Reserved are also the addresses for documentation (RFC 5737, 3849, 9637).
    """
    for pattern, candidates in ((_IPV4, places.ipv4), (_IPV6, places.ipv6)):
        for match in matches(pattern, text, candidates):
            try:
                address = ipaddress.ip_address(match.group())
            except ValueError:
                continue
            if not address.is_global or address.is_multicast or address in _DOCUMENTATION:
                continue
            if address.version == 4:
                # Four small numbers are nearly always the number of an article; a random address has them in 2 of 100.
                ahead = _SENTENCE_END.split(before(text, match.start(), _IP_CONTEXT_CHARACTERS))[-1]
                small = max(address.packed) < 100
                named = _IP_CONTEXT.search(ahead) and not _NUMBERED.search(ahead)
                if not named and (small or _VERSION.search(ahead)):
                    continue
            yield Found(match.start(), match.end(), "ip", address.compressed)
