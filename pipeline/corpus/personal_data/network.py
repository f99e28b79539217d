"""E-mail and IP addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from pipeline.corpus.personal_data.found import Found, before

_LOCAL = re.compile(r"[\w.%+'-]{0,63}[\w%+-]\Z")
_AT = re.compile(r"@|[ ]?[\[({](?:at|AT|apenstaart(?:je)?)[\])}][ ]?")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![\w@-])")
_SPELLED_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?[ ]?(?:\.|[\[({](?:dot|punt)[\])}])[ ]?){1,8}[a-z]{2,24}\b"
)
_SPELLED_DOT = re.compile(r"[ ]?[\[({](?:dot|punt)[\])}][ ]?")
_LOCAL_CHARACTERS = 66
_LOCAL_CHARACTER = re.compile(r"[\w.%+-]")

_IPV4 = re.compile(r"\d(?<![\w.-]\d)\d{0,2}(?:\.\d{1,3}){3}(?!\.?[\w-])")
# Only 2000::/3 is given to anyone; the path of a module, such as de::fa, is not.
_IPV6 = re.compile(r"[23](?<![\w:.][23])[0-9A-Fa-f]{3}:[0-9A-Fa-f:]{0,34}[0-9A-Fa-f](?![\w:])")
_VERSION = re.compile(r"\b(?:version|versie|release|build|section|paragraaf|artikel)", re.I)
_IP_CONTEXT = re.compile(r"\b(?:ip|ipv4|host|server|dns|whois|ping|inet)\b|\bip-?adres", re.I)
_IP_CONTEXT_CHARACTERS = 30


def emails(text: str) -> Iterator[Found]:
    """Yield e-mail addresses, also those written with [at] or (at)."""
    last = 0
    for at in _AT.finditer(text):
        local = _LOCAL.search(text, max(last, at.start() - _LOCAL_CHARACTERS), at.start())
        domain = (_DOMAIN if at.group() == "@" else _SPELLED_DOMAIN).match(text, at.end())
        if local is None or domain is None:
            continue
        written = local.group().lstrip("'")
        begin = at.start() - len(written)
        if _LOCAL_CHARACTER.match(text, begin - 1, begin) and begin > last:  # longer than 64 characters
            continue
        last = domain.end()
        host = _SPELLED_DOT.sub(".", domain.group()).replace(" ", "")
        yield Found(begin, last, "email", f"{written}@{host}".lower())


def ip_addresses(text: str) -> Iterator[Found]:
    """Yield public addresses: private and reserved ranges, versions and numbers of articles are not."""
    for pattern in (_IPV4, _IPV6):
        for match in pattern.finditer(text):
            try:
                address = ipaddress.ip_address(match.group())
            except ValueError:
                continue
            if not address.is_global or address.is_multicast:
                continue
            if address.version == 4:
                # Four small numbers are nearly always the number of an article; a random address has them in 2 of 100.
                ahead = before(text, match.start(), _IP_CONTEXT_CHARACTERS)
                small = max(address.packed) < 100
                if _VERSION.search(ahead) or (small and not _IP_CONTEXT.search(ahead)):
                    continue
            yield Found(match.start(), match.end(), "ip", address.compressed)
