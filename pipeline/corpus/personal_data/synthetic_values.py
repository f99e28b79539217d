"""Generates synthetic values of valid form that belong to nobody, as replacements of personal data.

Equal values in one document get equal replacements. In another document the replacement differs, so that nobody can be
traced across documents. Faker generates names, streets and mailboxes; other values are from unassigned ranges:

- e-mail: the domain persoon.example (RFC 2606 reserves .example);
- IP: 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24 (RFC 5737) and 2001:db8::/32 (RFC 3849);
- telephone: Dutch mobile numbers with 06-00: the Nummerplan telefoon- en ISDN-diensten assigns 061 to 065 and 068, and
  phonenumbers knows no others; the plan has no numbers for fiction;
- BSN: 9999…, passing the eleven-test: test persons of the BRP (999990019) and the specimen passport (999999990) have
  such numbers;
- IBAN: the bank code TEST, which no Dutch bank has, with correct check digits (ISO 13616);
- payment card: 400000…, the numbers of Stripe's test cards (docs.stripe.com/testing), with a correct check digit;
- KvK: 00…, with which no number of the register begins; its own test numbers, such as 69599068, look like others;
- passport: SPECI…, as SPECI2014 on the government's specimens;
- address: a postcode that ends in SS, which is never assigned, like SD and SA;
- number plate: the letters AEA: the road authority (RDW) uses no vowels since sidecode 4 except AA and a first O.

A synthetic value is not replaced again; only synthetic names cannot be recognized.
"""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections.abc import Callable

from faker import Faker
from stdnum import luhn
from stdnum.iso7064 import mod_97_10
from stdnum.nl import bsn

from pipeline.corpus.personal_data.spans import PersonalDataSpan

_SYNTHETIC_RANGES = {
    "email": re.compile(r".*@persoon\.example"),
    "telephone": re.compile(r"\+31600\d{6}"),
    "bsn": re.compile(r"9999\d{5}"),
    "iban": re.compile(r"NL\d\dTEST\d{10}"),
    "credit_card": re.compile(r"400000\d{10}"),
    "kvk": re.compile(r"00\d{6}"),
    "passport": re.compile(r"SPECI\d{4}"),
    "number_plate": re.compile(r"\d\dAEA\d"),
}


def is_synthetic(span: PersonalDataSpan) -> bool:
    """Return whether a value is in a synthetic range of this module."""
    pattern = _SYNTHETIC_RANGES.get(span.kind)
    return bool(pattern and pattern.fullmatch(span.value))


def _random_digits(draw: random.Random, number: int) -> str:
    return "".join(draw.choices("0123456789", k=number))


def _random_email(draw: random.Random, fake: Faker, span: PersonalDataSpan) -> str:
    name = unicodedata.normalize("NFD", f"{fake.first_name()}.{fake.last_name()}".lower())
    return re.sub(r"[^a-z.]", "", name) + f"{draw.randrange(100)}@persoon.example"


def _random_ip(draw: random.Random, fake: Faker, span: PersonalDataSpan) -> str:
    if ":" in span.value:
        return f"2001:db8:{draw.randrange(1, 2**16):x}::{draw.randrange(1, 2**16):x}"
    return f"{draw.choice(('192.0.2', '198.51.100', '203.0.113'))}.{draw.randrange(1, 255)}"


def _random_bsn(draw: random.Random, fake: Faker, span: PersonalDataSpan) -> str:
    while True:
        body = "9999" + _random_digits(draw, 4)
        # The weight of the last digit is -1; no digit matches a remainder of 10.
        last = bsn.checksum(body + "0") % 11
        if last < 10:
            return body + str(last)


def _random_iban(draw: random.Random, fake: Faker, span: PersonalDataSpan) -> str:
    account = "TEST" + _random_digits(draw, 10)
    return f"NL{mod_97_10.calc_check_digits(account + 'NL')}{account}"


def _random_card(draw: random.Random, fake: Faker, span: PersonalDataSpan) -> str:
    body = "400000" + _random_digits(draw, 9)
    return body + str(luhn.calc_check_digit(body))


_GENERATORS: dict[str, Callable[[random.Random, Faker, PersonalDataSpan], str]] = {
    "email": _random_email,
    "ip": _random_ip,
    "telephone": lambda draw, fake, span: f"06-00{_random_digits(draw, 6)}",
    "bsn": _random_bsn,
    "iban": _random_iban,
    "credit_card": _random_card,
    "kvk": lambda draw, fake, span: f"00{_random_digits(draw, 6)}",
    "passport": lambda draw, fake, span: f"SPECI{_random_digits(draw, 4)}",
    "number_plate": lambda draw, fake, span: f"{_random_digits(draw, 2)}-AEA-{_random_digits(draw, 1)}",
    "address": lambda draw, fake, span: (
        f"{fake.street_name()} {draw.randrange(1, 200)}, {draw.randrange(1000, 9999)} SS"
    ),
    "name": lambda draw, fake, span: str(fake.name()),
}
_FAKE = Faker("nl_NL")


def synthetic_value(span: PersonalDataSpan, seed: bytes) -> str:
    """Return the replacement of a value in the document with this seed; deterministic."""
    drawn = hashlib.sha256(seed + f"{span.kind}\0{span.value}".encode("utf-8", "surrogatepass")).digest()
    _FAKE.seed_instance(drawn)
    return _GENERATORS[span.kind](random.Random(drawn), _FAKE, span)
