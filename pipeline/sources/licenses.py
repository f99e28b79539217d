"""Licences as SPDX expressions: whether one is well written, and whether a run allows it."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import chain, combinations

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

COMPARED = 8  # licences of an expression, of which all sets are tried


def canonical(expression: str) -> str:
    """Return an SPDX expression, identifiers joined by AND, OR and WITH, in its official spelling.

    Raises:
        ValueError: it is none, or an identifier is not on the SPDX list and does not begin with LicenseRef-.
    """
    try:
        return str(canonicalize_license_expression(expression))
    except InvalidLicenseExpression as error:
        raise ValueError(
            f"{expression!r} is no SPDX licence ({' '.join(str(error).split())}): "
            "write one of https://spdx.org/licenses, or LicenseRef-NAME for a licence that is not there"
        ) from None


def licenses_in(expression: str) -> list[str]:
    """Return the licences that a canonical expression names, each with its exception where it has one."""
    return sorted({token for token in _tokens(expression) if token not in ("(", ")", "AND", "OR")})


def _tokens(expression: str) -> list[str]:
    return re.findall(r"\(|\)|\bAND\b|\bOR\b|[^\s()]+(?: WITH [^\s()]+)?", expression)


def say_the_same(one: str, other: str) -> bool:
    """Return whether two canonical expressions allow the same, whatever the order in which they say it."""
    named = licenses_in(one)
    if one == other or named != licenses_in(other) or len(named) > COMPARED:
        return one == other
    subsets = chain.from_iterable(combinations(named, size) for size in range(1, len(named) + 1))
    return all(is_allowed(one, subset) == is_allowed(other, subset) for subset in subsets)


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Return whether the allowed licences satisfy a canonical expression: all sides of AND, one side of OR.

    An identifier WITH an exception is one licence, and so is a whole expression: either may stand on the list.
    """
    if expression in allowed:
        return True
    tokens = _tokens(expression)

    def either() -> bool:
        found = [both()]
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            found.append(both())
        return any(found)

    def both() -> bool:
        found = [one()]
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            found.append(one())
        return all(found)

    def one() -> bool:
        token = tokens.pop(0)
        if token != "(":
            return token in allowed
        inside = either()
        tokens.pop(0)
        return inside

    return either()
