"""Finds e-mail addresses, IP addresses, and Dutch addresses by postcode or street and house number."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from re import Match, Pattern

from stdnum.nl import postcode

from pipeline.corpus.personal_data.spans import (
    Candidates,
    PersonalDataSpan,
    match_at_positions,
    raw_text_before,
    text_before,
)

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
# Without brackets: "jan at voorbeeld dot nl", where "at" and "dot" can be English words, and "jan apenstaartje …".
_AT_WORD = re.compile(r"[ ](?:(?P<at>at|AT)|apen?staart(?:je)?|APEN?STAART(?:JE)?)[ ]")
_WORDS_BEFORE = re.compile(r"(?<![\w.%+'-])[\w%+-][\w.%+'-]{0,63}(?:[ ](?:dot|DOT|punt|PUNT)[ ][\w%+-]{1,63}){0,3}\Z")
_TOP_LEVEL = {"nl", "be", "eu", "de", "fr", "uk", "com", "net", "org", "info", "nu", "me", "frl", "amsterdam"}
# No mailbox and no domain: "look at the dot net page", "mail me at example dot com".
_COMMON_WORD = re.compile(
    r"(?:a|an|the|this|that|it|its|his|him|her|my|me|our|us|your|you|them|de|het|een|is|are|was|were|be|not|here|more|now|"
    r"out|up|look|looks|looked|looking|work|works|worked|working|live|lives|read|see|find|meet|page|site|website|shop)",
    re.I,
)
_MAIL = re.compile(r"\bmail|\be-?mail|\bemail|\bschrij|\bwrite\b|bereik|\breach|\be:|\(e\)|\be\b")
_LOCAL_CHARACTERS = 66
_LOCAL_CHARACTER = re.compile(r"[\w.%+-]")

_IPV4 = re.compile(r"[0-9](?<![\w.-][0-9])\d{0,2}(?:\.\d{1,3}){3}(?!\.?[\w-])")
# Only 2000::/3 is allocated; this excludes module paths such as de::fa. A prefix ends in "::".
_IPV6 = re.compile(r"[23](?<![\w:.][23])[0-9A-Fa-f]{3}:[0-9A-Fa-f:]{0,34}(?:[0-9A-Fa-f](?![\w:])|:(?<=::)(?=/\d))")
# Python's ipaddress has the other ranges, and this one since 3.12.7.
_DOCUMENTATION = ipaddress.ip_network("3fff::/20")
_PREFIX_LENGTH = re.compile(r"/(\d{1,3})(?![\w-]|\.\d)")
# A household gets a prefix of 48 to 64 bits of IPv6 (RIPE-690), and one address of IPv4.
_LONGEST_PREFIX = {4: 31, 6: 47}
_VERSION = re.compile(r"\b(?:version|versie|release|build|section|paragraaf|artikel)")
# One in fifty addresses has the form of a version ("OpenSSL 3.0.13.101", "Chrome/120.0.0.0"). It counts as an address
# only directly after such a word or sign.
_IP_INTRODUCTION = re.compile(
    r"(?:\b(?:ip|ips|ip-?adres|ip-?address|ipv4|adres|address|host|server|dns|whois|ping|inet|ssh|proxy|vpn|firewall|router|"
    r"client|login|van|vanaf|naar|via|met|is|op|of|en|from|to|at|on|by|and|or)|(?<!\S)-{1,2}[\w-]+|[,;=:|@\[])\s?[(\"'`]?\Z"
)
# Directly after one of these words it is the number of an article or version.
_ARTICLE_WORD = re.compile(r"(?:artikel(?:en)?|voorschrift|paragraaf|section|versie|version|release|build)[ ]\Z")
_SENTENCE_END = re.compile(r"\n|[.!?] ")
_IP_CONTEXT = re.compile(
    r"\b(?:ip|ipv4|host|server|dns|whois|ping|inet|ssh|proxy|vpn|firewall|router|client|login)\b|\bip-?adres|"
    r"\badres\b|\baddress\b|\binge?log|logged|netwerk|network|verbinding|connect|verzoek|request"
)
_IP_CONTEXT_CHARACTERS = 40


def _match_emails(text: str, at_signs: Iterable[Match[str]], host: Pattern[str]) -> Iterator[PersonalDataSpan]:
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
        yield PersonalDataSpan(
            begin, last, "email", f"{written}@{_SPELLED_DOT.sub('.', domain.group())}".lower().replace(" ", "")
        )


def _find_worded_emails(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield addresses written in words, without brackets.

    An English "at" counts only if it is unambiguous: before a Dutch domain, after a mailbox that is no word (j.jansen,
    jan_3), or after a mention of mail.
    """
    for at in match_at_positions(_AT_WORD, text, places.at_word):
        local = _WORDS_BEFORE.search(text, max(0, at.start() - _LOCAL_CHARACTERS), at.start())
        domain = (_WORDED_DOMAIN if at["at"] else _SPELLED_DOMAIN).match(text, at.end())
        if local is None or domain is None:
            continue
        host = _SPELLED_DOT.sub(".", domain.group()).lower()
        if at["at"]:
            top = domain["top"].lower()
            if top not in _TOP_LEVEL or any(map(_COMMON_WORD.fullmatch, [local.group(), *host.split(".")])):
                continue
            mailbox = re.search(r"[._\d ]", local.group()) or top in ("nl", "be")
            if not mailbox and not _MAIL.search(text_before(text, local.start(), 40)):
                continue
        yield PersonalDataSpan(
            local.start(), domain.end(), "email", f"{_SPELLED_DOT.sub('.', local.group())}@{host}".lower()
        )


def find_emails(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield e-mail addresses, also those written with [at] or (at), or in words."""
    yield from _match_emails(text, match_at_positions(_AT, text, places.at_sign), _DOMAIN)
    yield from _match_emails(text, match_at_positions(_SPELLED_AT, text, places.spelled_at_sign), _SPELLED_DOMAIN)
    yield from _find_worded_emails(text, places)


def _is_version(parts: bytes) -> bool:
    """Return whether four numbers look like a version: a small one, then a smaller one or zero; or two zeros.

    After a second number of two digits, the third one has at most two.
    """
    first, second, third, _ = parts
    return (first < 40 and (second < 10 or (second < 25 and third < 100) or third == 0)) or second == third == 0


def _is_network(text: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address, end: int) -> bool:
    """Return whether a prefix length follows an address without host bits: a network of many, 145.100.0.0/16."""
    length = _PREFIX_LENGTH.match(text, end)
    if length is None or int(length[1]) > _LONGEST_PREFIX[address.version]:
        return False
    return ipaddress.ip_network(f"{address}/{length[1]}", strict=False).network_address == address


def find_ip_addresses(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield public IP addresses, without networks, private and reserved ranges, versions and numbers of articles.

    Reserved ranges include those for documentation (RFC 5737, 3849, 9637).
    """
    for pattern, candidates in ((_IPV4, places.ipv4), (_IPV6, places.ipv6)):
        for match in match_at_positions(pattern, text, candidates):
            try:
                address = ipaddress.ip_address(match.group())
            except ValueError:
                continue
            if not address.is_global or address.is_multicast or address in _DOCUMENTATION:
                continue
            if _is_network(text, address, match.end()):
                continue
            if address.version == 4:
                # Four small numbers are nearly always the number of an article; 2 % of random addresses have them.
                ahead = _SENTENCE_END.split(text_before(text, match.start(), _IP_CONTEXT_CHARACTERS))[-1]
                small = max(address.packed) < 100
                named = _IP_CONTEXT.search(ahead) and not _ARTICLE_WORD.search(ahead)
                if not named and (small or _VERSION.search(ahead)):
                    continue
                if _is_version(address.packed) and not (named and _IP_INTRODUCTION.search(ahead)):
                    continue
            yield PersonalDataSpan(match.start(), match.end(), "ip", address.compressed)


# A postcode with a house number identifies one household.
_POSTCODE = re.compile(
    r"[1-9](?:(?<=NL-[1-9])|(?<![\w.+][1-9]))\d{3}(?:[ ]{0,2}[A-Z]{2}|[ ]?[a-z]{2}(?=,?[ ](?:nr\.?|huis\w+)?[ ]?\d))"
    r"(?![\w-])"
)
_HOUSE = (
    r"[1-9]\d{0,3}(?:[ -]?(?:[A-Za-z]|bis|hs|huis|rood|zwart|I{2,3})(?!\w)|[ -]\d{1,4}(?!\w))?(?:[ ]?[-/][ ]?\d{1,4})?"
)
# House number after the postcode: 1234 AB 12, 1234 AB, nr. 12, 1234AB huisnummer 12-a.
_NUMBER_WORD = r"(?:(?:en[ ])?(?:het[ ])?huis(?:nummer|nr\.?)|nr\.?|nummer|house number|number|no\.?)"
_NUMBER_BEHIND = re.compile(
    rf"(?:(?P<word>[ \t]*[,;/|-]?[ \t]*{_NUMBER_WORD}[ :]*)|,?[ ]|[ ]?[-/|][ ]?)"
    rf"(?P<house>{_HOUSE})(?!\w|[.,]\d|[ ]?(?:%|€|euro\b|km\b|kg\b|uur\b|jaar\b|m2\b))",
    re.I,
)
# Street and house number before the postcode: Kerkstraat 12, 1234 AB. Between them, as in lists, tables and forms, are
# commas, bullets, bars, slashes, tabs, the town or the word "postcode".
_WORD = r"(?:[A-ZÀ-Ý'’][\w'’.-]*|[a-z]+(?:straat|str\.|weg|laan|plein|kade|gracht|dijk|singel|hof|pad|steeg))"
_PARTICLE = r"(?:van|de|der|den|het|ter|ten|te|op|in|bij|'t|’t|en|la|du)"
_MARK = r"[,;:|/•·∙●▪◦‣■»*-]"
_BETWEEN = rf"[ \t]*(?:{_MARK}{{1,2}}[ \t]*)?(?:(?:\r?\n[ \t]*){{1,2}}(?:{_MARK}[ \t]*)?)?"
_PLACE_LABEL = (
    r"(?:(?:[Pp]ostcode|POSTCODE|[Pp]\.?[Cc]\.?|[Zz]ip)(?:[ ]?(?:/|&|\+|en)[ ]?(?:[Ww]oon)?[Pp]laats)?"
    r"[ \t]*[:|.]*[ \t]*)?"
)
_HOUSE_IN_FRONT = re.compile(
    rf"(?:[ ]|[ ]?[\t;,|][ \t]?)(?:(?:nr\.?|huisnummer:?)[ ])?(?P<house>{_HOUSE})"
    rf"(?:[ ]?(?:{_MARK}|[ ](?:te|in))[ ](?:{_WORD}[ ]?){{1,3}})?"
    rf"(?:{_BETWEEN}{_PLACE_LABEL}|,?[ ](?:te|in)[ ]|(?:,?[ ](?:te|in))?[ ]?\()(?:NL-)?\Z"
)
_STREET_IN_FRONT = re.compile(
    rf"(?P<street>(?:\d{{1,2}}e[ ])?(?:{_WORD}[ ](?:{_PARTICLE}[ ]){{0,3}}){{0,4}}{_WORD}(?:[ ]19\d\d)?)"
    rf"{_HOUSE_IN_FRONT.pattern}"
)
_FRONT_CHARACTERS = 90
# A number joined to the text before it is the end of another number: 12-1234 AB, 3,1234 AB.
_JOINED_NUMBER = re.compile(r"[,/-]\Z")
_BOX = re.compile(rf"(?:postbus|p\.? ?o\.? ?box|antwoordnummer)[ ]*(?:nr\.?[ ]*)?[\d.]+(?:{_BETWEEN}|[ ]?\()\Z")
_NO_STREET = re.compile(
    r"(?:artikel(?:en)?|art\.|lid|leden|stb\.?|stcrt\.?|trb\.?|pb\.?|richtlijn|verordening|besluit|article|section|"
    r"table|tabel|bijlage|annex|hoofdstuk|chapter|figuur|figure|nr\.?|januari|februari|maart|april|mei|juni|juli|"
    r"augustus|september|oktober|november|december|january|february|march|may|june|july|august|october|"
    r"jan|feb|mrt|apr|jun|jul|aug|sept?|okt|oct|nov|dec|totaal|total|aantal|euro|deel|vol\.?|ed\.?|editie|edition|"
    r"paragraaf|par\.|psalm|vers|groep|group|pagina|blz\.?|page|stap|step|versie|version|model|type|serie|klasse|route|"
    r"windows|office|(?-i:[A-Z]{1,3}))",  # EN, ISO, KG, MM
    re.I,
)
_ADDRESS = re.compile(r"(?:\badres|address|postcode|postal code|\bwoon|\blive)\w*[^\d.]{0,20}\Z")
# The street after the town: 1234 AB Tiel, Kerkstraat 12.
_STREET_BEHIND = re.compile(
    rf"[ ]{{1,2}}{_WORD}(?:[ ](?:{_PARTICLE}[ ]){{0,2}}{_WORD}){{0,2}}[ ]?{_MARK}[ ](?:\d{{1,2}}e[ ])?"
    rf"(?P<street>(?:{_WORD}[ ](?:{_PARTICLE}[ ]){{0,3}}){{1,4}})(?:19\d\d[ ])?(?P<house>{_HOUSE})(?!\w|[.,]\d)"
)
# A year followed by letters as in law and history.
_YEAR = re.compile(r"(?:1\d|20)\d\d[ ]{0,2}(?:AB|AD|BC|BW|CE|EC|EG|EU|EN|EK|NJ|NR|NV|OM|RV|TK|VN|VS|WO|UN|US|IN)\Z")
# A year of this age, or a quantity with its unit: "GEB. 1952 TE 5", "3600 GB 12".
_YEAR_OR_QUANTITY = re.compile(
    r"(?:(?:19[3-9]|20[0-4])\d[ ]{0,2}..|\d{4}[ ]{0,2}(?:[KMGT]B|KG|KM|MM|CM|PK|HD|[KMG]W))\Z"
)
# A possible year or quantity is an address only with a typical street name, or with a town after it.
_STREET = re.compile(
    r"(?:straat|str\.|weg|laan|ln\.|plein|pln\.|kade|gracht|dijk|singel|hof|pad|steeg|park|wal|markt|dreef|ring|baan|brink|"
    r"plantsoen|burg|haven|meent|veld|akker|einde|boulevard|allee)(?=\Z|[ ])",
    re.I,
)
_TOWN = re.compile(r"[\s,;|/•·(-]{1,8}[A-ZÀ-Ý'’][\w'’-]{2,}")
# Postcode and house number without a street are an address only at the start of a phrase or after a preposition; after
# another word they are the number of an item ("Boeing 7474 XX 12").
_PHRASE_START = re.compile(r"(?:\A|[\n\t|;,:(\"'•·]|\b(?:op|naar|aan|bij|in|te|van|at|to|of|from))[ ]?\Z", re.I)


def _is_street(name: str, counted: bool) -> bool:
    """Return whether words before a number can be a street; if `counted`, they need a typical ending of streets."""
    return not _NO_STREET.fullmatch(name.split(" ")[-1]) and (not counted or bool(_STREET.search(name)))


# Without a postcode: a street with a typical ending and a house number, before a town or after a word for an address.
_STREET_ALONE = re.compile(
    r"(?P<street>(?:\d{1,2}e[ ])?"
    r"(?!(?:In|Op|Aan|Bij|Te|De|Het|Van|Naar|Uit|Langs|Over|Tussen|Voor|At|On|From|[A-Z]?[a-z]*adres)[ ])"
    rf"(?:{_WORD}[ ](?:(?:van|de|der|den|het|ter|ten|'t|’t)[ ]){{0,3}}){{0,4}}"
    r"(?:[A-ZÀ-Ý'’][\w'’.-]*(?:straat|str\.|weg|laan|plein|kade|gracht|dijk|singel|steeg|dreef|plantsoen|boulevard)|"
    r"Straat|Weg|Laan|Plein|Kade|Gracht|Dijk|Singel|Steeg|Dreef|Plantsoen|Boulevard))[ ]\Z"
)
_HOUSE_ALONE = re.compile(rf"(?P<house>{_HOUSE})(?!\w|[.,:/]\d|,?[ ]\d{{4}}[ ]?[A-Z]{{2}}(?!\w))")
_TOWN_BEHIND = re.compile(
    r"(?:,?[ ](?:te|in)[ ]|,[ ]?)(?:['’][st][- ]|Den[ ]|De[ ])?[A-ZÀ-Ý][a-zà-ÿ]{2}|[ ]\([A-ZÀ-Ý][\w'’ -]{2,}\)"
)
_PHRASE_END = re.compile(r"\s*(?:\Z|[.,;:)|\n]|(?:en|te|in|bij|met|waar|and)\b)")
_ADDRESS_IN_FRONT = re.compile(
    r"(?:adres(?:sen)?|address|\bwoon\w*|\bwonen\w*|\bgevestigd|kantoorhoudend\w*|\blives?|\bliving)\b[^.!?\n]{0,30}\Z"
)
_YEAR_NUMBER = re.compile(r"(?:1[5-9]|20)\d\d")


def _find_street_addresses(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    for match in match_at_positions(_HOUSE_ALONE, text, places.street):
        front = raw_text_before(text, match.start(), _FRONT_CHARACTERS)
        street = _STREET_ALONE.search(front)
        if street is None or _YEAR_NUMBER.fullmatch(match["house"]):
            continue
        named = _ADDRESS_IN_FRONT.search(front[: street.start()].lower()) and _PHRASE_END.match(text, match.end())
        if named or _TOWN_BEHIND.match(text, match.end()):
            start = match.start() - len(front) + street.start()
            yield PersonalDataSpan(start, match.end(), "address", re.sub(r"\W", "", text[start : match.end()]).upper())


def find_addresses(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield addresses: street or postcode with a house number; no post office boxes.

    A street without a postcode needs a town after it ("Kerkstraat 5 te Zwolle") or a word for an address before it.
    """
    yield from _find_postcode_addresses(text, places)
    yield from _find_street_addresses(text, places)


def _find_postcode_addresses(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    last = 0
    for match in match_at_positions(_POSTCODE, text, places.postcode):
        start, end = match.span()
        if start < last or not postcode.is_valid(re.sub("[ ]+", " ", match.group())):
            continue
        front = raw_text_before(text, start, _FRONT_CHARACTERS)
        street = _STREET_IN_FRONT.search(front) if _HOUSE_IN_FRONT.search(front) else None
        if _BOX.search(front.lower()):
            continue
        capital = match.group()[-1].isupper()
        counted = _YEAR_OR_QUANTITY.match(match.group())
        if capital and street and _is_street(street["street"], bool(counted and not _TOWN.match(text, end))):
            start -= len(front) - street.start()
            end += front[-1] == "(" and text[end : end + 1] == ")"
        else:
            number = _NUMBER_BEHIND.match(text, end)
            behind = number or _STREET_BEHIND.match(text, end)
            unsure = [not capital, _JOINED_NUMBER.search(front), _YEAR.match(match.group())]
            if number and not number["word"]:
                unsure += [counted and text[end] != ",", not _PHRASE_START.search(front)]
            elif behind and not number:
                unsure.append(not _is_street(behind["street"].rstrip(), bool(counted)))
            if behind is None or (any(unsure) and not _ADDRESS.search(front.lower())):
                continue
            end = behind.end("house")
        last = end
        yield PersonalDataSpan(start, end, "address", re.sub("[ ]", "", match.group()).upper())
