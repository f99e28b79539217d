"""Dutch addresses: a postcode with the number of a house, which together are one household."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stdnum.nl import postcode

from pipeline.corpus.personal_data.found import Found, written_before
from pipeline.corpus.personal_data.places import Places, matches

_POSTCODE = re.compile(
    r"[1-9](?:(?<=NL-[1-9])|(?<![\w.+][1-9]))\d{3}(?:[ ]{0,2}[A-Z]{2}|[ ]?[a-z]{2}(?=,?[ ](?:nr\.?|huis\w+)?[ ]?\d))"
    r"(?![\w-])"
)
_HOUSE = (
    r"[1-9]\d{0,3}(?:[ -]?(?:[A-Za-z]|bis|hs|huis|rood|zwart|I{2,3})(?!\w)|[ -]\d{1,4}(?!\w))?(?:[ ]?[-/][ ]?\d{1,4})?"
)
# The number behind: 1234 AB 12, 1234 AB, nr. 12, 1234AB huisnummer 12-a.
_NUMBER_WORD = r"(?:(?:en[ ])?(?:het[ ])?huis(?:nummer|nr\.?)|nr\.?|nummer|house number|number|no\.?)"
_NUMBER_BEHIND = re.compile(
    rf"(?:(?P<word>[ \t]*[,;/|-]?[ \t]*{_NUMBER_WORD}[ :]*)|,?[ ]|[ ]?[-/|][ ]?)"
    rf"(?P<house>{_HOUSE})(?!\w|[.,]\d|[ ]?(?:%|€|euro\b|km\b|kg\b|uur\b|jaar\b|m2\b))",
    re.I,
)
# The number in front, with its street: Kerkstraat 12, 1234 AB. Between them stands what lists, tables, forms and
# lines have there: commas, bullets, bars, slashes, tabs, and the town or the word "postcode".
_WORD = r"(?:[A-ZÀ-Ý'’][\w'’.-]*|[a-z]+(?:straat|str\.|weg|laan|plein|kade|gracht|dijk|singel|hof|pad|steeg))"
_PARTICLE = r"(?:van|de|der|den|het|ter|ten|te|op|in|bij|'t|’t|en|la|du)"
_MARK = r"[,;:|/•·∙●▪◦‣■»*-]"
_BETWEEN = rf"[ \t]*(?:{_MARK}{{1,2}}[ \t]*)?(?:(?:\r?\n[ \t]*){{1,2}}(?:{_MARK}[ \t]*)?)?"
_LABEL = (
    r"(?:(?:[Pp]ostcode|POSTCODE|[Pp]\.?[Cc]\.?|[Zz]ip)(?:[ ]?(?:/|&|\+|en)[ ]?(?:[Ww]oon)?[Pp]laats)?"
    r"[ \t]*[:|.]*[ \t]*)?"
)
_HOUSE_IN_FRONT = re.compile(
    rf"(?:[ ]|[ ]?[\t;,|][ \t]?)(?:(?:nr\.?|huisnummer:?)[ ])?(?P<house>{_HOUSE})"
    rf"(?:[ ]?(?:{_MARK}|[ ](?:te|in))[ ](?:{_WORD}[ ]?){{1,3}})?"
    rf"(?:{_BETWEEN}{_LABEL}|,?[ ](?:te|in)[ ]|(?:,?[ ](?:te|in))?[ ]?\()(?:NL-)?\Z"
)
_STREET_IN_FRONT = re.compile(
    rf"(?P<street>(?:\d{{1,2}}e[ ])?(?:{_WORD}[ ](?:{_PARTICLE}[ ]){{0,3}}){{0,4}}{_WORD}(?:[ ]19\d\d)?)"
    rf"{_HOUSE_IN_FRONT.pattern}"
)
_FRONT_CHARACTERS = 90
# A number that is joined to what stands before it, as the end of another one is: 12-1234 AB, 3,1234 AB.
_JOINED = re.compile(r"[,/-]\Z")
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
# The street behind, after the town: 1234 AB Tiel, Kerkstraat 12.
_STREET_BEHIND = re.compile(
    rf"[ ]{{1,2}}{_WORD}(?:[ ](?:{_PARTICLE}[ ]){{0,2}}{_WORD}){{0,2}}[ ]?{_MARK}[ ](?:\d{{1,2}}e[ ])?"
    rf"(?P<street>(?:{_WORD}[ ](?:{_PARTICLE}[ ]){{0,3}}){{1,4}})(?:19\d\d[ ])?(?P<house>{_HOUSE})(?!\w|[.,]\d)"
)
# A year with letters that law and history write behind years.
_YEAR = re.compile(r"(?:1\d|20)\d\d[ ]{0,2}(?:AB|AD|BC|BW|CE|EC|EG|EU|EN|EK|NJ|NR|NV|OM|RV|TK|VN|VS|WO|UN|US|IN)\Z")
# A year of this age, or a quantity with its unit: "GEB. 1952 TE 5", "3600 GB 12".
_COUNTED = re.compile(r"(?:(?:19[3-9]|20[0-4])\d[ ]{0,2}..|\d{4}[ ]{0,2}(?:[KMGT]B|KG|KM|MM|CM|PK|HD|[KMG]W))\Z")
# What may be such a thing has a street that is named as streets are, or a town behind it.
_STREET = re.compile(
    r"(?:straat|str\.|weg|laan|ln\.|plein|pln\.|kade|gracht|dijk|singel|hof|pad|steeg|park|wal|markt|dreef|ring|baan|brink|"
    r"plantsoen|burg|haven|meent|veld|akker|einde|boulevard|allee)(?=\Z|[ ])",
    re.I,
)
_TOWN = re.compile(r"[\s,;|/•·(-]{1,8}[A-ZÀ-Ý'’][\w'’-]{2,}")
# A number alone is an address where the postcode begins what it stands in, or a word says where: behind another word it
# is the number of a thing ("Boeing 7474 XX 12").
_BEGINS = re.compile(r"(?:\A|[\n\t|;,:(\"'•·]|\b(?:op|naar|aan|bij|in|te|van|at|to|of|from))[ ]?\Z", re.I)


def _is_street(name: str, counted: bool) -> bool:
    """Return whether words before a number are a street's; before what may be a year or a quantity, in form too."""
    return not _NO_STREET.fullmatch(name.split(" ")[-1]) and (not counted or bool(_STREET.search(name)))


def addresses(text: str, places: Places) -> Iterator[Found]:
    """Yield the street, house number and postcode, or the postcode and house number; a post office box is none."""
    last = 0
    for match in matches(_POSTCODE, text, places.postcode):
        start, end = match.span()
        if start < last or not postcode.is_valid(re.sub("[ ]+", " ", match.group())):
            continue
        front = written_before(text, start, _FRONT_CHARACTERS)
        street = _STREET_IN_FRONT.search(front) if _HOUSE_IN_FRONT.search(front) else None
        if _BOX.search(front.lower()):
            continue
        capital = match.group()[-1].isupper()
        counted = _COUNTED.match(match.group())
        if capital and street and _is_street(street["street"], bool(counted and not _TOWN.match(text, end))):
            start -= len(front) - street.start()
            end += front[-1] == "(" and text[end : end + 1] == ")"
        else:
            number = _NUMBER_BEHIND.match(text, end)
            behind = number or _STREET_BEHIND.match(text, end)
            unsure = [not capital, _JOINED.search(front), _YEAR.match(match.group())]
            if number and not number["word"]:
                unsure += [counted and text[end] != ",", not _BEGINS.search(front)]
            elif behind and not number:
                unsure.append(not _is_street(behind["street"].rstrip(), bool(counted)))
            if behind is None or (any(unsure) and not _ADDRESS.search(front.lower())):
                continue
            end = behind.end("house")
        last = end
        yield Found(start, end, "address", re.sub("[ ]", "", match.group()).upper())
