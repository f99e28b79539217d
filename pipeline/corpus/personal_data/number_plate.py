"""Dutch number plates, by their sidecodes (the order of letters and digits)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeline.corpus.personal_data.found import Found, around, numbers_a_thing
from pipeline.corpus.personal_data.places import Places, matches

# Three groups of letters or digits, for which X and 9 are the road authority's own signs, as given out since 1951.
_SIDECODES = {
    *("XX-99-99", "99-99-XX", "99-XX-99", "XX-99-XX", "XX-XX-99", "99-XX-XX"),
    *("99-XXX-9", "9-XXX-99", "XX-999-X", "X-999-XX", "XXX-99-X", "X-99-XXX", "9-XX-999", "999-XX-9"),
}
_MODERN = {code for code in _SIDECODES if "999" in code or "XXX" in code}
# Since sidecode 4 the road authority (RDW) uses no vowels, except a first O for semi-trailers, nor C and Q, nor these
# abbreviations: a plate that has them needs a word for a vehicle near.
_NOT_GIVEN_OUT = re.compile(r"[AEIOUCQ]|^(?:GVD|KKK|NSB|PKK|PSV|PVV|SGP|TBS|VVD)$")
_DASHED = re.compile(r"-(?<=[A-Z0-9]-)(?:[A-Z]{1,3}|\d{1,3})-(?:[A-Z]{1,3}|\d{1,3})(?![\w-]|[./]\w)")
_FIRST = re.compile(r"(?:\A|(?<![\w./:#-]))(?:[A-Z]{1,3}|\d{1,3})\Z")
_CONTEXT = re.compile(
    r"kenteken|nummerbord|nummerplaat|(?:number|licence|license) ?plate|registration|\bplaten?\b|\bplates?\b|"
    r"\b(?:auto|wagen|bus|busje|bestelbus|motor|motorfiets|scooter|voertuig|aanhanger|vrachtwagen|caravan|oplegger|"
    r"car|lorry|truck|motorcycle|vehicle|trailer|taxi|brommer|bromfiets|tractor|driver|bestuurder|chauffeur)s?\b|"
    r"geparkeerd|\bparked|\brijdt\b|\breed\b|\bdrove\b|\brdw\b|\bapk\b"
)
# Without hyphens a plate looks like any code: only right behind a word for one.
_NAMES = ("[Kk]enteken", "KENTEKEN", "[Nn]ummerbord", "[Nn]ummerplaat", "[Ll]icen[cs]e [Pp]late", "[Nn]umber [Pp]late")
_BEHIND_NAME = "|".join(f"(?<={name}{tail})" for name in _NAMES for tail in ("", "s", "nummer", "bewijs"))
_NAMED = re.compile(
    rf"(?![A-Za-z])(?:(?:{_BEHIND_NAME})(?: number| plate)?|(?<=[Rr]egistration) (?:number|plate))"
    r"(?: (?:is|was|van|met|of|with|nummer|number))?[ \t]*[:=]?[ \t]*[\"'(\[]?"
    r"(?P<plate>(?:[A-Za-z]{1,3}|\d{1,3})([ ]?[-·]?[ ]?)(?:[A-Za-z]{1,3}|\d{1,3})\2(?:[A-Za-z]{1,3}|\d{1,3}))(?![\w-])"
)
_UNDASHED = re.compile(
    "|".join(sorted({code.replace("-", "") for code in _SIDECODES})).replace("X", "[A-Z]").replace("9", r"\d")
)


def _code(groups: list[str]) -> str:
    return "-".join("9" * len(group) if group.isdigit() else "X" * len(group) for group in groups)


def number_plates(text: str, places: Places) -> Iterator[Found]:
    """Yield plates: with hyphens where a vehicle is named near or the form is one that is only used for plates.

    That form is a recent sidecode (a group of three), in the letters that are given out, behind no word such as "type".
    """
    for match in matches(_DASHED, text, places.number_plate):
        first = _FIRST.search(text[max(0, match.start() - 4) : match.start()])
        if first is None:
            continue
        start = match.start() - len(first.group())
        groups = text[start : match.end()].split("-")
        code = _code(groups)
        if code not in _SIDECODES:
            continue
        letters = "".join(group for group in groups if group.isalpha())
        recent = code in _MODERN and not _NOT_GIVEN_OUT.search(letters)
        named = recent or _CONTEXT.search(around(text, start, match.end(), 60, 40))
        if named and not numbers_a_thing(text, start):
            yield Found(start, match.end(), "number_plate", "".join(groups))
    for named in matches(_NAMED, text, places.plate_word):
        value = re.sub("[ ·-]", "", named["plate"]).upper()
        if _UNDASHED.fullmatch(value):
            yield Found(named.start("plate"), named.end("plate"), "number_plate", value)
