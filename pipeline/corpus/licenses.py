"""Why rights remove documents, and how the licences of the documents of a source are told in one line."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.corpus import removal

OF_LICENSE = (
    removal.LICENSE_NOT_STATED,
    removal.LICENSE_NOT_UNDERSTOOD,
    removal.LICENSE_NOT_ALLOWED,
    removal.LICENSE_DIFFERS,
)
OF_RIGHTS = (removal.OPT_OUT, *OF_LICENSE)


def told_licenses(declared: str, documents: Mapping[str, int], own: object) -> str:
    """Return the licence that a source declares, or the licences of its documents, the most frequent first.

    Args:
        documents: how many are used, by licence.
        own: whether documents of the source have their own licence: the field that it stands in.
    """
    ranked = sorted(documents.items(), key=lambda item: (-item[1], item[0])) if own else []
    return "; ".join(f"{license} × {number:,}" for license, number in ranked) or declared
