"""Opt-out lists: the domains, ids and holders whose texts a source may not give, with the date of the list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from pipeline.core.errors import InputError
from pipeline.core.hosts import parse_host
from pipeline.core.normalization import composed
from pipeline.core.settings import Settings
from pipeline.core.yaml_files import parse_yaml
from pipeline.corpus.personal_data import marked
from pipeline.corpus.settings import PersonalData
from pipeline.sources.reading import iso_date

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

    def published(self) -> dict[str, Any]:
        """Return the list as anybody may see it."""
        ids, holders = map(shown, self.ids), map(shown, self.holders)
        return {"date": self.date, "domains": self.domains, "ids": [*ids], "holders": [*holders]}


def shown(entry: str) -> str:
    """Return an id or a holder with markers for all personal data, whatever a corpus replaces."""
    return marked(entry, PersonalData())


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


def read_opt_out(path: Path) -> OptOut:
    """Return the entries of a list.

    YAML and JSON (.yaml, .yml, .json) have the keys date, domains, ids and holders. In any other file a line is a
    domain, or begins with `id:`, `holder:`, `domain:` or `date:`; `#` begins a comment line.

    Raises:
        InputError: the file cannot be read, or does not hold what it should.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
        is_yaml = path.suffix in (".yaml", ".yml", ".json")
        given = parse_yaml(content, path, scalars_as_text=True) if is_yaml else _lines(content)
        if given is not None and not isinstance(given, dict):
            raise ValueError("the keys are date, domains, ids and holders")
        return OptOut.model_validate({key: value for key, value in (given or {}).items() if value is not None})
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise InputError(shown(f"{path}: {field}: {problem['msg'].removeprefix('Value error, ')}")) from None
    except InputError as error:
        raise InputError(shown(str(error))) from None
    except (OSError, ValueError) as error:
        raise InputError(shown(f"{path} is no opt-out list ({' '.join(str(error).split())}): correct it")) from None


def _lines(content: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in map(str.strip, content.split("\n")):
        if not line or line.startswith("#"):
            continue
        kind, colon, value = line.partition(":")
        if colon and kind.strip() == "date":
            if "date" in found:
                raise ValueError("it has two dates: leave one of them out")
            found["date"] = value.strip()
        elif colon and f"{kind.strip()}s" in KINDS:
            found.setdefault(f"{kind.strip()}s", []).append(value.strip())
        else:
            found.setdefault("domains", []).append(line)
    return found
