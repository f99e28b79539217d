"""Personal data is masked and counted; what only looks like it stays."""

from __future__ import annotations

import time

import pytest
from datatrove.data import Document
from hypothesis import given
from hypothesis import strategies as st
from stdnum.nl import bsn

from pipeline.corpus.personal_data import MaskPersonalData, mask
from pipeline.corpus.settings import PersonalData

ALL = PersonalData()


@pytest.mark.parametrize(
    ("text", "masked", "kind"),
    [
        ("Mail naar jan.de-vries+post@voorbeeld.co.uk.", "Mail naar <EMAIL>.", "email"),
        ("<a@b.nl>", "<<EMAIL>>", "email"),
        ("van josé@café.nl", "van <EMAIL>", "email"),
        ("vanaf 145.100.12.9 ingelogd", "vanaf <IP> ingelogd", "ip"),
        ("has address 52.0.72.176.", "has address <IP>.", "ip"),
        ("de server 8.8.4.4 antwoordt", "de server <IP> antwoordt", "ip"),
        ("op (2001:4860:4001:801::1011)", "op (<IP>)", "ip"),
        ("Uw BSN is 111222333.", "Uw BSN is <BSN>.", "bsn"),
        ("burgerservicenummer: 1112.22.333", "burgerservicenummer: <BSN>", "bsn"),
        ("123 456 782 is haar sofinummer", "<BSN> is haar sofinummer", "bsn"),
        ("rekening NL91ABNA0417164300", "rekening <IBAN>", "iban"),
        ("NL91 ABNA 0417 1643 00 EUR 25 overgemaakt", "<IBAN> EUR 25 overgemaakt", "iban"),
        ("(GB82 WEST 1234 5698 7654 32)", "(<IBAN>)", "iban"),
    ],
)
def test_personal_data_is_masked(text: str, masked: str, kind: str) -> None:
    assert mask(text, ALL) == (masked, {kind: 1})
    off = ALL.model_copy(update={kind: False})
    assert mask(text, off) == (text, {})


@pytest.mark.parametrize(
    "text",
    [
        "twee @ drie en @naam en a@b zonder punt",
        "import foo@2.1.0",
        "192.168.1.20 en 10.200.0.1 en 127.0.0.1 zijn van niemand",
        "artikel 9.2.2.1 en voorschrift 30.6.5.2",
        "versie 1612 (8.2.1.207)",
        "999.300.200.100 bestaat niet en 1.2.3.4.5 ook niet",
        "om 12:34:56 in std::de::fa tot 2262:: en fe80::1 en 2001:db8::1",
        "bestelnummer 111222333",
        "Uw BSN is 111222334.",
        "BSN onbekend, bedrag 111.222.333,50",
        "NL91ABNA0417164301 klopt niet",
        "type AB12CDEF3456GHIJ",
    ],
)
def test_decoys_stay(text: str) -> None:
    assert mask(text, ALL) == (text, {})


def test_a_bsn_far_from_its_word_stays() -> None:
    text = "Het BSN staat op de pas. " + "Lees verder. " * 10 + "111222333"
    assert mask(text, ALL) == (text, {})


@given(st.integers(0, 10**9 - 1))
def test_exactly_the_numbers_that_pass_the_eleven_test_are_masked(number: int) -> None:
    digits = f"{number:09d}"
    masked, counts = mask(f"bsn {digits}", ALL)
    assert (counts == {"bsn": 1}) == bsn.is_valid(digits) == (masked == "bsn <BSN>")


@given(st.text(st.sampled_from("a1.@ :-NL91ABNA0417164300\n"), max_size=200))
def test_masking_twice_finds_nothing_more(text: str) -> None:
    masked, _ = mask(text, ALL)
    assert mask(masked, ALL) == (masked, {})


def test_the_block_counts_and_long_runs_take_linear_time() -> None:
    documents = [Document(text="a@b.nl en c@d.nl", id="1"), Document(text="A1b2" * 250_000 + ":" * 9, id="2")]
    began = time.perf_counter()
    masked = list(MaskPersonalData(ALL).run(iter(documents)))
    assert time.perf_counter() - began < 5
    assert [document.metadata["personal_data"] for document in masked] == [{"email": 2}, {}]
