"""Read opt-out lists, and mask personal data in their entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.core.yaml_files import parse_yaml
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.sources.settings import OPT_OUT_KINDS, OptOut

YAML_SUFFIXES = (".yaml", ".yml", ".json")  # JSON is YAML


def mask_personal_data(entry: str) -> str:
    """Return an id or a holder with markers for all personal data, whatever a corpus replaces."""
    from pipeline.corpus.personal_data.metadata_masking import mask_short_text  # here: it loads for a third of a second

    return mask_short_text(entry, PersonalData())


def publishable_list(opt_out: OptOut) -> dict[str, Any]:
    """Return a list with personal data masked, for publication."""
    ids, holders = map(mask_personal_data, opt_out.ids), map(mask_personal_data, opt_out.holders)
    reservations = [one.model_dump(exclude={"rules"}) for one in opt_out.reservations]
    return {
        **{"date": opt_out.date, "domains": opt_out.domains, "ids": [*ids], "holders": [*holders]},
        **({"reservations": reservations} if reservations else {}),
    }


def read_opt_out_list(path: Path) -> OptOut:
    """Return the entries of a list.

    YAML and JSON (.yaml, .yml, .json) have the keys date, domains, ids, holders and reservations. In any other file a
    line is a domain, or begins with `id:`, `holder:`, `domain:` or `date:`; `#` begins a comment line.

    Raises:
        InputError: the file cannot be read, or does not hold what it should.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
        is_yaml = path.suffix in YAML_SUFFIXES
        given = parse_yaml(content, path, scalars_as_text=True) if is_yaml else _parse_lines(content)
        if given is not None and not isinstance(given, dict):
            raise ValueError("the keys are date, domains, ids and holders")
        return OptOut.model_validate({key: value for key, value in (given or {}).items() if value is not None})
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise InputError(
            mask_personal_data(f"{path}: {field}: {problem['msg'].removeprefix('Value error, ')}")
        ) from None
    except InputError as error:
        raise InputError(mask_personal_data(str(error))) from None
    except (OSError, ValueError) as error:
        raise InputError(
            mask_personal_data(f"{path} is no opt-out list ({' '.join(str(error).split())}): correct it")
        ) from None


def _parse_lines(content: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for line in map(str.strip, content.split("\n")):
        if not line or line.startswith("#"):
            continue
        kind, colon, value = line.partition(":")
        if colon and kind.strip() == "date":
            if "date" in fields:
                raise ValueError("it has two dates: leave one of them out")
            fields["date"] = value.strip()
        elif colon and f"{kind.strip()}s" in OPT_OUT_KINDS:
            fields.setdefault(f"{kind.strip()}s", []).append(value.strip())
        else:
            fields.setdefault("domains", []).append(line)
    return fields
