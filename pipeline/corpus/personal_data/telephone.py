"""Finds telephone numbers: Dutch ones, those with a country code, and those of other regions in national layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import phonenumbers
from phonenumbers import PhoneNumber, PhoneNumberType

from pipeline.core.errors import InputError
from pipeline.corpus.personal_data.spans import (
    DUTCH_ACCOUNT,
    Candidates,
    PersonalDataSpan,
    follows_account_word,
    is_item_number,
    match_at_positions,
    passes_bank_eleven_test,
    text_before,
)

_GAP = r"(?:[ ]?[-/][ ]?|[. ])"
# A zero with nine more digits is the next number: 035 6123456 / 06 12345678.
_SAME = rf"{_GAP}(?!0(?:{_GAP}?\d){{9}}(?!\d))"
# All alternatives begin with the same few characters, so that the regex engine skips to these.
_CANDIDATE = re.compile(
    r"[+(0-9](?<![\w/+-][+(0-9])(?<!\d[.,][+(0-9])(?:"
    # With a country code; the trunk zero may be in brackets.
    rf"(?P<international>(?:(?<=\+)|(?<=\()\+|(?<=0)0)[1-9]\d{{0,2}}\)?{_GAP}?(?:\(0?\d{{0,4}}\){_GAP}?)?\d(?:{_GAP}?\d){{5,13}})(?!\w)"
    # In national layout.
    rf"|(?P<national>(?:(?<=\()0|(?<=0))[1-9]\d{{0,3}}(?:{_GAP}?\))?(?:(?:{_SAME})?\d){{6,9}})(?!\w)"
    # North America: area code, exchange, line.
    r"|(?P<american>(?:(?<=\()[2-9]\d\d\)[ -]?|(?<=[2-9])\d\d[-.])[2-9]\d\d[-.]\d{4})(?![\w-]|[.,]\d))"
)
_CONTEXT = re.compile(
    r"\btel\b|\btel[.:]|telefoon|telephone|landline|\bphone|\bmob(?:iel|ile)?\b|\bgsm\b|\bbel(?:len|t|de)?\b|\bcall|\bfax|"
    r"whatsapp|\bsms\b|bereikbaar|\breach|nummer is|\bring\b|\bt:"
)
_TRUNK = re.compile(r"\([ ]?0[ ]?\)")
# Numbers of Dutch services, which are not tried as numbers of other regions.
_SERVICE = re.compile(r"\(?0(?:800|90[069])")
_OLD_NUMBER = re.compile(r"0(?!80|9)\d{9}")
# The country, check digits and bank of an IBAN with a typing error.
_IBAN_START = re.compile(r"\b[a-z]{2}\d\d[ .-]?[a-z]{4}[ .-]{0,2}\Z")
# 06-12-2010 10:30 has the digits of a mobile number.
_DATE_AND_TIME = re.compile(r"\d\d([-/.])\d\d\1(?:19|20)\d\d(?!\d)")
_DATE = re.compile(r"\d\d([-/.])\d\d\1\d{4}")
# Groups of four digits after another such group are a bank reference.
_IN_FOURS = re.compile(r"\d{4} \d{4}(?!\d)")
_FOUR = re.compile(r"\d{4} \Z")
_NOT_DIGIT = re.compile(r"\D")
_GROUP = re.compile(r"\d+")
_LAST_GROUP = re.compile(r"\D+\d+\Z")
# Service numbers, such as 0800, 0900 and 116, which belong to no person.
_SERVICES = {
    PhoneNumberType.TOLL_FREE,
    PhoneNumberType.PREMIUM_RATE,
    PhoneNumberType.SHARED_COST,
    PhoneNumberType.VOICEMAIL,
    PhoneNumberType.UNKNOWN,
}


def check_regions(regions: Sequence[str]) -> None:
    """Raise InputError if a region has no numbering plan."""
    for region in regions:
        if region not in phonenumbers.SUPPORTED_REGIONS:
            raise InputError(f"personal_data.telephone_regions: {region!r} is no region: write NL, BE, GB, …")


def _parse(written: str, region: str | None) -> PhoneNumber | None:
    """Return the number if it is a valid one of a person or an organization, else None."""
    try:
        number = phonenumbers.parse(written, region)
    except phonenumbers.NumberParseException:
        return None
    return number if phonenumbers.number_type(number) not in _SERVICES else None


def _starts_with_area_code(written: str, number: PhoneNumber) -> bool:
    first = _GROUP.findall(written)[0]
    national = phonenumbers.national_significant_number(number)
    if len(first) > len(national):
        return True
    # The library is slow for mobile numbers, which have no area code.
    mobile = phonenumbers.number_type(number) == PhoneNumberType.MOBILE
    area = 0 if mobile else phonenumbers.length_of_geographical_area_code(number)
    if area == 0:
        return len(first) in (2, 3, 4, 5)
    return len(first) == area + 1


def _parse_international(written: str) -> tuple[str, PhoneNumber] | None:
    """Return the longest valid number at the start, because other figures may follow."""
    while len(_NOT_DIGIT.sub("", written)) >= 8:
        plus = "+" + written[2:] if written.startswith("00") else written
        number = _parse(_TRUNK.sub("", plus), None)
        if number is not None:
            return written, number
        shorter = _LAST_GROUP.sub("", written)
        if shorter == written:
            return None
        written = shorter
    return None


def _parse_national(text: str, start: int, written: str, regions: Sequence[str]) -> tuple[str, PhoneNumber] | None:
    """Return the longest number of the first region, or of another region after a word for a telephone number."""
    if regions[0] == "NL" and _SERVICE.match(written):
        return None
    complete = written
    while len(_NOT_DIGIT.sub("", written)) >= 9:
        number = _parse(written, regions[0])
        if number is not None and _starts_with_area_code(written, number):
            return written, number
        written, longer = _LAST_GROUP.sub("", written), written
        if written == longer:
            break
    if not _CONTEXT.search(text_before(text, start, 30)):
        return None
    old = _OLD_NUMBER.fullmatch(_NOT_DIGIT.sub("", complete)) and not _DATE.match(complete)
    if regions[0] == "NL" and old:
        # Ten digits in a range that is no longer, or not yet, in the plan.
        return complete, phonenumbers.parse(complete, "NL")
    for region in regions[1:]:
        number = _parse(complete, region)
        if number is not None:
            return complete, number
    return None


def _is_account(text: str, start: int) -> bool:
    """Return whether a number is that of a bank account and no mobile number; one that may be both is found as both."""
    account = None if text.startswith("06", start) else DUTCH_ACCOUNT.match(text, start)
    return account is not None and follows_account_word(text, start) and passes_bank_eleven_test(account.group())


def find_telephone_numbers(text: str, places: Candidates, regions: Sequence[str]) -> Iterator[PersonalDataSpan]:
    """Yield telephone numbers in the numbering plans.

    Numbers without a country code belong to the first region. Those of another region need a word such as "telefoon"
    before them, except North American ones with their distinct layout.
    """
    for match in match_at_positions(_CANDIDATE, text, places.telephone):
        written, start = match.group(), match.start()
        if written[0] == "(" and written.count("(") > written.count(")"):
            written, start = written[1:], start + 1
        if _IN_FOURS.match(written) and _FOUR.search(text_before(text, start, 5)):
            continue
        other = (
            is_item_number(text, start)
            or _is_account(text, start)
            or _IBAN_START.search(text_before(text, start, 12))
            or _DATE_AND_TIME.match(written)
        )
        if other and not _CONTEXT.search(text_before(text, start, 12)):
            continue
        if match["international"]:
            written_number = _parse_international(written)
        elif match["national"]:
            written_number = _parse_national(text, start, written, regions)
        else:
            american = _parse(written, "US") if "US" in regions else None
            written_number = (written, american) if american else None
        if written_number is not None:
            value = phonenumbers.format_number(written_number[1], phonenumbers.PhoneNumberFormat.E164)
            yield PersonalDataSpan(start, start + len(written_number[0]), "telephone", value)
