"""E-mail and IP addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from re import Match, Pattern

from pipeline.corpus.personal_data.found import Found, before
from pipeline.corpus.personal_data.places import Places, matches

_LOCAL_BACKWARDS = re.compile(r"[\w%+-][\w.%+'-]{0,63}")
_AT = re.compile(r"@")
_SPELLED_AT = re.compile(r"[\[({<][ ]?(?:at|AT|apen?staart(?:je)?)[ ]?[\])}>][ ]?")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![^\W_]|@)")
_DOT = r"(?:\.|[ ]\.[ ]|[ ]?[\[({<][ ]?(?:dot|DOT|punt|PUNT|\.)[ ]?[\])}>][ ]?|[ ](?:dot|DOT|punt|PUNT)[ ])"
_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_SPELLED_DOMAIN = re.compile(rf"(?:{_LABEL}{_DOT}){{1,8}}[A-Za-z]{{2,24}}\b")
_SPELLED_DOT = re.compile(_DOT)
_WORD_DOT = r"[ ](?:dot|DOT|punt|PUNT)[ ]"
_WORDED_DOMAIN = re.compile(
    rf"{_LABEL}(?:\.{_LABEL}){{0,3}}(?:{_WORD_DOT}{_LABEL}){{0,3}}{_WORD_DOT}(?P<top>[A-Za-z]{{2,24}})\b"
)
# Without brackets: "jan at voorbeeld dot nl", in which at and dot are English words too, and "jan apenstaartje …".
_AT_WORD = re.compile(r"[ ](?:(?P<at>at|AT)|apen?staart(?:je)?|APEN?STAART(?:JE)?)[ ]")
_WORDS_BEFORE = re.compile(r"(?<![\w.%+'-])[\w%+-][\w.%+'-]{0,63}(?:[ ](?:dot|DOT|punt|PUNT)[ ][\w%+-]{1,63}){0,3}\Z")
_TOP_LEVEL = {"nl", "be", "eu", "de", "fr", "uk", "com", "net", "org", "info", "nu", "me", "frl", "amsterdam"}
# No mailbox and no domain: "look at the dot net page", "mail me at example dot com".
_NO_PART = re.compile(
    r"(?:a|an|the|this|that|it|its|his|him|her|my|me|our|us|your|you|them|de|het|een|is|are|was|were|be|not|here|more|now|"
    r"out|up|look|looks|looked|looking|work|works|worked|working|live|lives|read|see|find|meet|page|site|website|shop)",
    re.I,
)
_MAIL = re.compile(r"\bmail|\be-?mail|\bemail|\bschrij|\bwrite\b|bereik|\breach|\be:|\(e\)|\be\b")
_LOCAL_CHARACTERS = 66
_LOCAL_CHARACTER = re.compile(r"[\w.%+-]")

_IPV4 = re.compile(r"[0-9](?<![\w.-][0-9])\d{0,2}(?:\.\d{1,3}){3}(?!\.?[\w-])")
# Only 2000::/3 is given to anyone; the path of a module, such as de::fa, is not.
_IPV6 = re.compile(r"[23](?<![\w:.][23])[0-9A-Fa-f]{3}:[0-9A-Fa-f:]{0,34}[0-9A-Fa-f](?![\w:])")
# Python knows the others; this one since 3.12.7.
_DOCUMENTATION = ipaddress.ip_network("3fff::/20")
_VERSION = re.compile(r"\b(?:version|versie|release|build|section|paragraaf|artikel)")
# What has the form of a version, as one of fifty addresses has, is an address only right behind such words or a sign:
# "OpenSSL 3.0.13.101", also where a server runs it, and "Chrome/120.0.0.0".
_SAID = re.compile(
    r"(?:\b(?:ip|ips|ip-?adres|ip-?address|ipv4|adres|address|host|server|dns|whois|ping|inet|ssh|proxy|vpn|firewall|router|"
    r"client|login|van|vanaf|naar|via|met|is|op|of|en|from|to|at|on|by|and|or)|(?<!\S)-{1,2}[\w-]+|[,;=:|@\[])\s?[(\"'`]?\Z"
)
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


def _worded_emails(text: str, places: Places) -> Iterator[Found]:
    """Yield what is written in words, without brackets.

    An English "at" counts where nothing else can be meant: before a Dutch domain, behind a mailbox that is no word
    (j.jansen, jan_3), or with mail named before it.
    """
    for at in matches(_AT_WORD, text, places.at_word):
        local = _WORDS_BEFORE.search(text, max(0, at.start() - _LOCAL_CHARACTERS), at.start())
        domain = (_WORDED_DOMAIN if at["at"] else _SPELLED_DOMAIN).match(text, at.end())
        if local is None or domain is None:
            continue
        host = _SPELLED_DOT.sub(".", domain.group()).lower()
        if at["at"]:
            top = domain["top"].lower()
            if top not in _TOP_LEVEL or any(map(_NO_PART.fullmatch, [local.group(), *host.split(".")])):
                continue
            mailbox = re.search(r"[._\d ]", local.group()) or top in ("nl", "be")
            if not mailbox and not _MAIL.search(before(text, local.start(), 40)):
                continue
        yield Found(local.start(), domain.end(), "email", f"{_SPELLED_DOT.sub('.', local.group())}@{host}".lower())


def emails(text: str, places: Places) -> Iterator[Found]:
    """Yield e-mail addresses, also those written with [at] or (at), or in words."""
    yield from _emails(text, matches(_AT, text, places.at_sign), _DOMAIN)
    yield from _emails(text, matches(_SPELLED_AT, text, places.spelled_at_sign), _SPELLED_DOMAIN)
    yield from _worded_emails(text, places)


def _is_version(parts: bytes) -> bool:
    """Return whether four numbers are as those of versions: a small one, then a smaller one or a zero; or two zeros.

    Behind a second number of two digits the third one has two at most.
    """
    first, second, third, _ = parts
    return (first < 40 and (second < 10 or (second < 25 and third < 100) or third == 0)) or second == third == 0


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
                if _is_version(address.packed) and not (named and _SAID.search(ahead)):
                    continue
            yield Found(match.start(), match.end(), "ip", address.compressed)
