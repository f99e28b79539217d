"""Hosts of URLs as browsers read them: the URL Standard (WHATWG) with Unicode Technical Standard 46, non-transitional.

It differs from the standard in two points. An address may lack its scheme, and a host that a browser refuses stays as
it is in lower case, so that an opt-out of its domain still acts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache
from string import punctuation
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

import idna

_AROUND = "".join(map(chr, range(0x21)))  # C0 controls and the space
_REMOVED = str.maketrans("", "", "\t\n\r")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SPECIAL = frozenset(("http", "https", "ws", "wss", "ftp"))  # any number of slashes, either way round, may follow
_PORT = re.compile(r":\d*$")
_DEFAULT_PORT = re.compile(r":(?:80|443)?$")
_FORBIDDEN = re.compile(r'[\x00-\x20"#%/:<>?@\[\\\]^`{|}\x7f]')
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


class SplitUrl(NamedTuple):
    """The parts of a URL as written, and its normalized host."""

    prefix: str
    """The scheme with its colon and slashes."""
    authority: str
    """Host and port, without userinfo; empty where the URL has no host."""
    rest: str
    host: str


def split_url(url: str) -> SplitUrl:
    """Split a URL, or a host with a path."""
    url = url.strip(_AROUND).translate(_REMOVED)
    match = _SCHEME.match(url)
    scheme, rest = (match[1].lower(), url[match.end() :]) if match else ("", url)
    if scheme in _SPECIAL:
        prefix, rest = f"{scheme}://", rest.lstrip("/\\")
    elif match and re.match(r"\d+(?![^/\\?#])", rest):  # a host without a scheme, and its port
        scheme, prefix, rest = "", "", url
    elif (slashes := rest[:2]) == "//" or (not scheme and {*slashes} <= {*"/\\"} and len(slashes) == 2):
        prefix, rest = f"{scheme}:" * bool(scheme) + "//", rest[2:]
    elif scheme or slashes[:1] in ("/", "\\"):  # such as mailto:, or a path
        return SplitUrl(f"{scheme}:" * bool(scheme), "", rest, "")
    else:
        prefix = ""
    end = re.search(r"[/?#]" if scheme and scheme not in _SPECIAL else r"[/\\?#]", rest)
    authority, rest = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    authority = authority.rpartition("@")[2]
    return SplitUrl(prefix, authority, rest, normalize_host(_PORT.sub("", authority)))


def request_key(url: str) -> str:
    """Return host, port and path with query as a browser requests them: the same for http and https."""
    parts = split_url(url)
    path = quote(parts.rest.partition("#")[0].lstrip("/"), safe=punctuation)
    return f"{parts.host}:{read_port(parts)}/{path}"


def read_port(parts: SplitUrl) -> str:
    """Return the port of a URL; empty for that of http and https."""
    return _DEFAULT_PORT.sub("", parts.authority.rpartition("]")[2]).partition(":")[2]


def extract_host(url: str | None) -> str:
    """Return the normalized host of a URL; empty if it has none."""
    return split_url(url).host if url else ""


@lru_cache(1 << 16)
def normalize_host(host: str) -> str:
    """Normalize a host: ASCII, lower case, without a final dot; IPv6 in brackets."""
    try:
        return normalize_valid_host(host)
    except ValueError:
        return host.lower().rstrip(".")


def normalize_valid_host(host: str) -> str:
    """Normalize a valid host.

    Raises:
        ValueError: a browser refuses it.
    """
    if host.startswith("["):
        return f"[{ipaddress.IPv6Address(host[1:].removesuffix(']')).compressed}]"
    decoded = unquote_to_bytes(host).decode("utf-8", "replace") if "%" in host else host
    mapped = idna.uts46_remap(decoded, std3_rules=False)
    labels = [label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in mapped.split(".")]
    ascii_host = ".".join(labels).rstrip(".")
    if _FORBIDDEN.search(ascii_host):
        raise ValueError(f"{host!r} holds a character that no host has")
    last = ascii_host.rpartition(".")[2]
    return _parse_ipv4(ascii_host) if _NUMBER.fullmatch(last) else ascii_host


def _parse_ipv4(host: str) -> str:
    parts = host.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        raise ValueError(f"{host!r} ends like an IPv4 address and is none")
    *leading, tail = (int(part[2:] or "0", 16) if part[:2] == "0x" else _octal_or_decimal(part) for part in parts)
    if any(number > 255 for number in leading) or tail >= 256 ** (5 - len(parts)):
        raise ValueError(f"{host!r} has a number that is too large for an IPv4 address")
    return str(ipaddress.IPv4Address(sum(number << 24 - 8 * place for place, number in enumerate(leading)) + tail))


def _octal_or_decimal(number: str) -> int:
    return int(number, 8) if len(number) > 1 and number[0] == "0" else int(number)


def domain_suffixes(host: str) -> Iterator[str]:
    """Yield a host and the domains that it is in, the longest first; an IP address is in none."""
    if host.startswith("[") or _NUMBER.fullmatch(host.rpartition(".")[2]):
        yield host
        return
    while host:
        yield host
        host = host.partition(".")[2]
