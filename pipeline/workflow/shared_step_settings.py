"""Settings that several steps share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.core.hashing import hash_file, hash_folder
from pipeline.core.settings import Pretrained, Settings
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.settings import SignatureSettings


def select_matching_fields(settings: type[Settings], *sections: Settings) -> dict[str, Any]:
    """Return the values of sections of the configuration for the keys that a step's settings have."""
    return {
        key: getattr(section, key)
        for section in sections
        for key in sorted(type(section).model_fields.keys() & settings.model_fields.keys())
        if key not in ("source", "corpus", "tokenizer", "tokens")
    }


def minhash_signature_settings(config: Config, corpus: str) -> SignatureSettings:
    return SignatureSettings(**select_matching_fields(SignatureSettings, config.corpus[corpus].deduplication))


def add_names_model_hash(kinds: PersonalData) -> PersonalData:
    """Return the settings with the hash of the names model, so that another model changes them."""
    if kinds.names is None or kinds.names_sha256 is not None:
        return kinds
    return kinds.model_copy(
        update={"names_sha256": hash_folder(kinds.names, "personal_data.names", "a spaCy pipeline")}
    )


@cache
def _cached_sha256(path: Path, changed_nanoseconds: int) -> str:
    """Return the sha256 of a file, which is read once for all units of a corpus."""
    return hash_file(path)


def file_sha256(path: Path) -> str:
    return _cached_sha256(path, path.stat().st_mtime_ns)


def hash_harmful_files(config: Config, corpus: str) -> list[str]:
    """Return the sha256 of each list and classifier of harmful content of a corpus."""
    return [*map(file_sha256, config.harmful_content_files(corpus))]


def pretrained_models(config: Config) -> dict[str, Pretrained]:
    """Return the pretrained models that models of the run begin with, by the names of these."""
    return {name: model.pretrained for name, model in config.models.items() if model.pretrained}
