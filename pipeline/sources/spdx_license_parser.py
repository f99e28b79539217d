"""Parses licenses of data sets as SPDX expressions, compares them, and checks them against allowed licenses.

Data sets write SPDX, a name, a URL, or a list of these. Ambiguous text, or text with other words, is not parsed,
because a guess could assign a wrong license.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping
from itertools import chain, combinations
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.core.url_hosts import split_url

MAXIMUM_COMPARED_LICENSES = 8  # of an expression, because all subsets are tried


def canonicalize_spdx_expression(expression: str) -> str:
    """Return an SPDX expression (identifiers joined by AND, OR and WITH) in its official spelling.

    Raises:
        ValueError: it is invalid, or an identifier is not on the SPDX list and does not begin with LicenseRef-.
    """
    try:
        return str(canonicalize_license_expression(expression))
    except InvalidLicenseExpression as error:
        raise ValueError(
            f"{expression!r} is no SPDX license ({' '.join(str(error).split())}): "
            "write one of https://spdx.org/licenses, or LicenseRef-NAME for a license that is not there"
        ) from None


def licenses_in(expression: str) -> list[str]:
    """Return the licenses in a canonical expression, each with its exception."""
    return sorted({*_split_expression(expression)} - {"(", ")", "AND", "OR"})


def _split_expression(expression: str) -> list[str]:
    return re.findall(r"\(|\)|\bAND\b|\bOR\b|[^\s()]+(?: WITH [^\s()]+)?", expression)


def are_equivalent(one: str, other: str) -> bool:
    """Return whether two canonical expressions are logically equivalent."""
    named = licenses_in(one)
    if one == other or named != licenses_in(other) or len(named) > MAXIMUM_COMPARED_LICENSES:
        return one == other
    subsets = chain.from_iterable(combinations(named, size) for size in range(1, len(named) + 1))
    return all(is_allowed(one, subset) == is_allowed(other, subset) for subset in subsets)


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Return whether the allowed licenses satisfy a canonical expression: all sides of AND, one side of OR.

    The list may also contain an identifier WITH an exception, or a complete expression.
    """
    if expression in allowed:
        return True
    tokens = _split_expression(expression)

    def parse_operands(word: str, part: Callable[[], bool]) -> list[bool]:
        results = [part()]
        while tokens and tokens[0] == word:
            tokens.pop(0)
            results.append(part())
        return results

    def any_alternative_is_allowed() -> bool:
        return any(parse_operands("OR", lambda: all(parse_operands("AND", operand_is_allowed))))

    def operand_is_allowed() -> bool:
        token = tokens.pop(0)
        if token != "(":
            return token in allowed
        inside = any_alternative_is_allowed()
        tokens.pop(0)
        return inside

    return any_alternative_is_allowed()


def suggest_license(written: str) -> str | None:
    """Return the SPDX license, or several joined by "or", that a wrong identifier may mean; None if none is near.

    A name without version, such as CC-BY, gives its newest one; a name with several forms, such as GPL, all versions.
    """
    from packaging.licenses._spdx import LICENSES

    if not written.strip() or (license := normalize_license(written.strip(), {})):
        return license if written.strip() else None
    elements = _parse_creative_commons_name(written)
    name = re.escape(f"CC-{elements[0]}" if elements else "-".join(_split_name(written)))
    pattern = re.compile(rf"{name}-(\d\.[\d.]+|\d(?=-Clause))(-only|-or-later|-Clause)?", re.IGNORECASE)
    versions = [match for one in LICENSES.values() if not one["deprecated"] and (match := pattern.fullmatch(one["id"]))]
    if versions and not any(match[2] for match in versions):
        return max(versions, key=lambda match: match[1])[0]
    if versions:
        *most, last = sorted(match[0] for match in versions)
        return f"{', '.join(most)} or {last}"
    near = difflib.get_close_matches(written.casefold(), LICENSES, n=1, cutoff=0.8) if len(written) > 4 else []
    return LICENSES[near[0]]["id"] if near else None


PUBLIC_DOMAIN = "LicenseRef-Public-Domain"
_ELEMENTS = ("by", "nc", "nd", "sa")  # of Creative Commons, in the order of SPDX
_WORDS = (
    (r"creative commons|\bcc(?=by\b)", "cc "),
    (r"attribution|naamsvermelding", "by "),
    (r"non[ -]?commercial|niet[ -]?commercieel", "nc "),
    (r"no[ -]?deriv(?:ative|ativework)?s?\b(?: works)?|geen ?afgeleide ?werken", "nd "),
    (r"share[ -]?alike|gelijk ?delen", "sa "),
)
_FILLERS = {
    *("the", "v", "version", "license", "licence", "licentie"),
    *("international", "internationaal", "unported", "generic", "universal"),
}
_NAMES = {
    **dict.fromkeys(("cc0", "cc0 1.0", "cc zero", "cc zero 1.0", "cc 0", "cc 0 1.0"), "CC0-1.0"),
    **dict.fromkeys(("public domain", "public domain mark", "public domain mark 1.0", "publiek domein"), PUBLIC_DOMAIN),
}
_OBJECT_KEYS = ("identifier", "spdx", "id", "@id", "name", "url")
_SURROUNDING_MARKS = ' \t\n-–—:;,.()[]<>"'
_ADDRESS = re.compile(r"https?://[^\s<>()\"]+", re.IGNORECASE)
_ADDRESSES = {
    "apache.org": (r"/licenses/LICENSE-(2\.0)(?:\.txt|\.html)?", "Apache-{}"),
    "opendatacommons.org": (r"/licenses/(by|pddl|odbl)(?:/(?:1-0|1\.0|summary)?)?", "{}-1.0"),
    "opensource.org": (r"/licenses?/([\w.-]+)", "{}"),
    "spdx.org": (r"/licenses/([\w.+-]+?)(?:\.html|\.json)?", "{}"),
}


def stringify_license_field(value: Any) -> str | None:
    """Return the license field of a row as a string, as JSON for lists and objects; None for an empty value."""
    if isinstance(value, float) and value != value:  # NaN, a missing value in data frames
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value)
    else:
        try:
            text = "" if _is_empty(value) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
        except RecursionError:
            text = "nested too deeply"
    return text.encode("utf-8", "replace").decode().strip() or None


def _is_empty(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_empty, value))
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or (isinstance(value, str) and not value.strip())


def normalize_license(written: str, names: Mapping[str, str]) -> str | None:
    """Return a license as a canonical SPDX expression; None if it is not understood.

    The licenses of a list all apply and are joined by AND. An object, such as Wikimedia's, is parsed by its identifier,
    name and url; those that can be parsed must agree.

    Args:
        written: the result of `stringify_license_field`.
        names: the source's own names of licenses, in lower case.
    """
    if (name := normalize_nfc(written).casefold()) in names:
        return names[name]
    if written[0] in "[{":
        try:
            return _parse_value(json.loads(written), names)
        except (ValueError, RecursionError):
            return None
    try:
        return canonicalize_spdx_expression(written)
    except ValueError:
        return _parse_name_or_url(written)


def _parse_value(value: Any, names: Mapping[str, str]) -> str | None:
    if isinstance(value, dict):
        fields = (value[key] for key in _OBJECT_KEYS if isinstance(value.get(key), str))
        licenses_of_parts = {_parse_value(part, names) for part in fields} - {None}
        return licenses_of_parts.pop() if len(licenses_of_parts) == 1 else None
    if isinstance(value, list):
        licenses = {_parse_value(part, names) for part in value if not _is_empty(part)}
        parts = [f"({part})" if part and " OR " in part and len(licenses) > 1 else part for part in licenses]
        return None if None in licenses else canonicalize_spdx_expression(" AND ".join(sorted(map(str, parts))))
    return normalize_license(value.strip(), names) if isinstance(value, str) and value.strip() else None


def _parse_name_or_url(text: str) -> str | None:
    """Return the license of a URL, a name, or a name followed by its URL or another name of the same license."""
    addresses = _ADDRESS.findall(text)
    if len(addresses) > 1:
        return None
    name = _ADDRESS.sub(" ", text).strip(_SURROUNDING_MARKS)
    if addresses:
        license = _parse_license_url(addresses[0])
    elif twice := re.fullmatch(r"([^()]+)\(([^()]+)\)", name + ")" * name.count("(")):
        name, license = twice[1].strip(_SURROUNDING_MARKS), _parse_name(twice[2].strip(_SURROUNDING_MARKS))
    else:
        return _parse_name(name)
    if not name or license is None:
        return license
    elements = _parse_creative_commons_name(name)
    if elements is not None and elements[1] is None:
        return license if re.match(rf"(LicenseRef-)?CC-{elements[0]}-\d", license) else None
    return license if license == _parse_name(name) else None


def _parse_license_url(address: str) -> str | None:
    parts = split_url(address)
    host, path = parts.host.removeprefix("www."), re.split("[?#]", parts.rest, maxsplit=1)[0].rstrip("/.,;")
    if host == "creativecommons.org":
        return _parse_creative_commons_path(path.lower().strip("/").split("/"))
    pattern, form = _ADDRESSES.get(host, ("", ""))
    match = re.fullmatch(pattern, path, re.IGNORECASE) if pattern else None
    if match is None:
        return None
    name = form.format(f"odc-{match[1]}" if match[1].lower() == "by" else match[1])
    return _canonical_or_none(name)


def _parse_creative_commons_path(path: list[str]) -> str | None:
    """Return the license of the path of a Creative Commons URL; LicenseRef- for a national port that SPDX lacks."""
    while path and re.match(r"deed|legalcode|rdf$", path[-1]):
        path = path[:-1]
    if path[:1] == ["publicdomain"]:
        return {"zero": "CC0-1.0", "mark": PUBLIC_DOMAIN}.get(path[1]) if len(path) in (2, 3) else None
    if path[:1] != ["licenses"] or len(path) not in (3, 4):
        return None
    kind, version = path[1].split("-"), path[2]
    license = _canonical_or_none("-".join(["cc", *sorted(kind, key=(*_ELEMENTS, *kind).index), version]))
    if license is None or len(path) == 3:
        return license
    port = f"{license}-{path[3].upper()}"
    return (_canonical_or_none(port) or f"LicenseRef-{port}") if re.fullmatch(r"[a-z]{2,3}", path[3]) else None


def _parse_name(name: str) -> str | None:
    if not re.fullmatch(r"[\w .,+–—-]+", name):
        return None
    if (elements := _parse_creative_commons_name(name)) is not None:
        return _canonical_or_none(f"CC-{elements[0]}-{elements[1]}") if elements[1] else None
    words = [word for word in _split_name(name) if word not in _FILLERS]
    if license := _NAMES.get(" ".join(words)):
        return license
    joined = "-".join(words)
    return _canonical_or_none(joined) or (_canonical_or_none(f"{joined}.0") if joined[-1:].isdigit() else None)


def _split_name(name: str) -> list[str]:
    return re.findall(r"[^\s,()–—_-]+", re.sub(r"\bv(?=\d)", "", name.lower().replace("creative commons", "cc")))


def _parse_creative_commons_name(name: str) -> tuple[str, str | None] | None:
    """Return elements, such as BY-SA, and version of a Creative Commons name; None for another name."""
    low = name.lower()
    for pattern, short in _WORDS:
        low = re.sub(pattern, short, low)
    words = [word for word in _split_name(low) if word not in _FILLERS and word != "public"]
    match = re.fullmatch(r"cc((?: (?:by|nc|nd|sa))+)(?: (\d\.\d))?", " ".join(words))
    elements = match[1].split() if match else []
    if not match or elements[0] != "by" or len({*elements}) < len(elements):
        return None
    return "-".join(sorted(elements, key=_ELEMENTS.index)).upper(), match[2]


def _canonical_or_none(name: str) -> str | None:
    try:
        return canonicalize_spdx_expression(name)
    except ValueError:
        return None
