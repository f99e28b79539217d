"""Opt-out lists: the domains, ids and holders whose texts a source may not give, with the date of the list."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator

from pipeline.core.hosts import parse_host
from pipeline.core.normalization import composed
from pipeline.core.settings import Settings
from pipeline.sources.raw_documents import iso_date

KINDS = ("domains", "ids", "holders")


class OptOut(Settings):
    """Who reserved their rights: `domains` with all their subdomains, `ids` of documents, `holders` of rights."""

    date: str | None = Field(default=None, description="when the list was made, ISO 8601")
    domains: list[str] = []
    ids: list[str] = []
    holders: list[str] = []

    @field_validator("date", mode="before")
    @classmethod
    def _iso(cls, value: Any) -> str | None:
        if value is not None and iso_date(value) is None:
            raise ValueError("write the date as YYYY-MM-DD")
        return iso_date(value)

    @field_validator("domains")
    @classmethod
    def _bare(cls, domains: list[str]) -> list[str]:
        return sorted({bare_domain(domain) for domain in domains})

    @field_validator("ids", "holders")
    @classmethod
    def _ordered(cls, values: list[str]) -> list[str]:
        if not all(value.strip() for value in values):
            raise ValueError("an entry is empty: write what is meant, or take the line out")
        return sorted({composed(value.strip()) for value in values})


def bare_domain(domain: str) -> str:
    """Return a domain as it is compared: as browsers read it, without a leading `*.` and a final dot.

    Raises:
        ValueError: it is no domain but a URL, or holds a space.
    """
    bare = domain.strip().removeprefix("*.").strip(".")
    try:
        if not bare or any(sign in bare for sign in "/ *,%") or (":" in bare and bare[0] != "["):
            raise ValueError("a sign of no domain")
        host = parse_host(bare)
        if not re.fullmatch(r"[a-z0-9._-]+|\[.+\]", host):  # a browser takes a;b.nl, and no page has such a host
            raise ValueError("a sign of no domain")
        return host
    except ValueError:
        raise ValueError(f"{domain!r} is no domain: write it like voorbeeld.nl") from None
