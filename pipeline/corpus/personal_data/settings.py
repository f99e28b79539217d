"""Settings of the search for personal data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.settings import Settings


class PersonalData(Settings):
    """Which personal data is replaced: by a marker such as <EMAIL>, or by a synthetic value that belongs to nobody."""

    email: bool = Field(default=True, description="e-mail addresses")
    ip: bool = Field(default=True, description="public IP addresses")
    bsn: bool = Field(default=True, description="Dutch citizen service numbers")
    iban: bool = Field(default=True, description="bank account numbers")
    telephone: bool = Field(default=True, description="telephone numbers")
    address: bool = Field(default=True, description="a Dutch postcode with the number of a house")
    kvk: bool = Field(default=True, description="numbers of the Dutch chamber of commerce")
    number_plate: bool = Field(default=True, description="Dutch number plates")
    credit_card: bool = Field(default=True, description="payment card numbers")
    passport: bool = Field(default=True, description="passport numbers")
    replacement: Literal["marker", "synthetic"] = Field(
        default="marker", description="<EMAIL> and the like, or values of valid form that belong to nobody"
    )
    telephone_regions: list[str] = Field(
        default=["NL", "BE", "GB", "US"],
        min_length=1,
        description="the first is that of numbers without a country code; the others need a word such as 'telefoon'",
    )
    public_bodies: list[str] = Field(
        default=[], description="what stays: domains, mailboxes (info@), telephone numbers, postcodes; * for any"
    )
    known_public_bodies: bool = Field(default=True, description="keep also what the pipeline knows to be public")
    function_mailboxes: bool = Field(
        default=True, description="keep mailboxes of functions (helpdesk@), and those at domains such as example.com"
    )
    names: str | None = Field(default=None, description="the folder of a spaCy pipeline that recognises persons")
    names_sha256: str | None = Field(default=None, description="the hash of that folder; computed if missing")

    def list_replacement_markers(self) -> list[str]:
        """Return the markers that replace personal data in texts, one per kind; none with synthetic values."""
        if self.replacement != "marker":
            return []
        switches = (key for key, field in type(self).model_fields.items() if field.annotation is bool)
        kinds = [
            key for key in switches if key not in ("known_public_bodies", "function_mailboxes") and getattr(self, key)
        ]
        return [f"<{kind.upper()}>" for kind in [*kinds, *["name"] * (self.names is not None)]]
