"""Settings of signing and of the RO-Crate."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.core.settings import Pretrained, Settings, optional_later_field


class Timestamps(Settings):
    """A timestamp authority (RFC 3161) for checkpoints of the attestation log."""

    url: str = Field(pattern=r"^https?://", description="where the authority takes requests, from the login node")
    certificates: str = Field(min_length=1, description="a PEM file: the authority's root certificate, to check by")


class Provenance(Settings):
    """Signing key, owner, timestamps and public log of checkpoints; none of them changes a result."""

    key: str | None = Field(None, description="the private key that signs, a PEM file that every node can read")
    owner: str | None = Field(None, min_length=1, description="the owner of the key, as readers know them")
    timestamps: Timestamps | None = None
    log: str | None = Field(None, description="a file outside the results to which each log checkpoint is appended")

    @model_validator(mode="after")
    def _key_has_owner(self) -> Provenance:
        if (self.key is None) != (self.owner is None):
            raise ValueError("key and owner belong together: give both")
        return self


class CrateSettings(Settings):
    """Name, description, license and provider of a run's RO-Crate."""

    run: str = Field(min_length=1)
    name: str | None = Field(None, description="title of the crate; the run's name if none is given")
    description: str = "A language model and the records of how it was made, from raw text to evaluation."
    license: str = Field(
        "each text as its source says, records and report CC-BY-4.0, weights as the provider states",
        description="SPDX identifier, URL or words: under what the run as a whole may be used",
    )
    provider: str | None = Field(None, description="who ran the pipeline and publishes the run")
    provider_url: str | None = Field(None, description="the provider's page")
    contact: str | None = None
    classifiers: dict[str, Pretrained] = optional_later_field(
        {}, description="by CORPUS/COLUMN, pretrained classifiers"
    )
    pretrained: dict[str, Pretrained] = Field(
        default={}, exclude_if=lambda models: not models, description="what models of the run began with"
    )
