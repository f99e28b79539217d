"""What the settings of several steps have in common."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.core.hashing import folder_sha256, sha256_of
from pipeline.core.settings import Pretrained, Settings
from pipeline.corpus.settings import PersonalData, SignatureSettings


def shared(settings: type[Settings], *sections: Settings) -> dict[str, Any]:
    """Return those values of the sections that the step's settings have a key for."""
    return {
        key: getattr(section, key)
        for section in sections
        for key in sorted(type(section).model_fields.keys() & settings.model_fields.keys())
        if key not in ("source", "corpus", "tokenizer", "tokens")
    }


def signatures(config: Config, corpus: str) -> SignatureSettings:
    return SignatureSettings(**shared(SignatureSettings, config.corpus[corpus].deduplication))


def with_hash(kinds: PersonalData) -> PersonalData:
    """Return the settings with the hash of the model of names, so that another model is another setting."""
    if kinds.names is None or kinds.names_sha256 is not None:
        return kinds
    return kinds.model_copy(
        update={"names_sha256": folder_sha256(kinds.names, "personal_data.names", "a spaCy pipeline")}
    )


@cache
def _sha256(path: Path, changed_nanoseconds: int) -> str:
    """Return the sha256 of a file, read once as long as it does not change: every unit of a corpus asks for it."""
    return sha256_of(path)


def file_sha256(path: Path) -> str:
    return _sha256(path, path.stat().st_mtime_ns)


def harmful(config: Config, corpus: str) -> list[str]:
    """Return the sha256 of each list and classifier of harmful content of a corpus."""
    return [*map(file_sha256, config.harmful_files(corpus))]


def pretrained_models(config: Config) -> dict[str, Pretrained]:
    """Return what models of the run began with, by their names."""
    return {name: model.pretrained for name, model in config.models.items() if model.pretrained}
