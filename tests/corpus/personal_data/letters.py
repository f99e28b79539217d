"""Write the other seeded texts with personal data: letters, forms, CVs, judgments, posts, chats, invoices, tables.

It is independent of texts.py: it follows how people and offices write such data, without that module and
before the searches were changed for it, so that a form missing in one of the two is measured by the other.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from stdnum import luhn
from stdnum.iso7064 import mod_97_10
from stdnum.nl import bsn

from tests.corpus.personal_data.texts import Text, Truth

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_WORDS = _FILE.pop("words")
_MARK = "\0"
_PIECE = re.compile(r"\{(\w+)\}")
# Hyphens and blanks of word processors, PDF and telephones.
_HYPHENS = "\u2010\u2011\u2012\u2013\u2212\u00ad"
_BLANKS = "\u00a0\u202f\u2007"
_SMALL_DOMAINS = ("voorbeeld", "mijnpost", "bakkerijsmit", "zaaier")
# How postal towns, streets and postcodes are separated: in a line, a list, a table, over lines.
_BETWEEN = (
    *(", ",) * 6,
    *("\n", "\n", "\r\n", "  ", "\t", " • ", " · ", " / ", " | ", " - ", ",", " , ", ",  ", ";", "; ", "\n\n", ", \n"),
)


class Letters:
    """Write texts; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(f"letters {seed}")

    def digits(self, number: int, first: str = "0123456789") -> str:
        return self.draw.choice(first) + "".join(self.draw.choices("0123456789", k=number - 1))

    def hyphen(self) -> str:
        return self.draw.choice(_HYPHENS) if self.draw.random() < 0.35 else "-"

    def blank(self) -> str:
        return self.draw.choice(_BLANKS) if self.draw.random() < 0.25 else " "

    def groups(self, value: str, *sizes: int, between: str | None = None) -> str:
        """Return the value in groups of these sizes, with one separator between all of them."""
        separator = between if between is not None else self.draw.choice([self.blank(), self.blank(), "."])
        pieces, place = [], 0
        for size in sizes:
            pieces.append(value[place : place + size])
            place += size
        return separator.join(pieces)

    def person(self) -> str:
        first, last = self.draw.choice(_WORDS["first"]), self.draw.choice(_WORDS["last"])
        return self.draw.choice([f"{first} {last}", f"{first[0]}. {last}", f"{first} {last}"])

    def town(self) -> str:
        return str(self.draw.choice(_WORDS["towns"]))

    # Values with personal data.

    def mobile(self) -> str:
        return self.digits(8, "123458")

    def telephone(self) -> str:
        hyphen, blank, draw = self.hyphen(), self.blank(), self.draw
        if draw.random() < 0.55:
            n = self.mobile()
            pairs, fours = self.groups(n, 2, 2, 2, 2, between=blank), self.groups(n, 4, 4, between=blank)
            return str(
                draw.choice(
                    [
                        *(f"06{hyphen}{n}", f"06{n}", f"06{blank}{n}", f"06 {hyphen} {n}", f"06{blank}{pairs}"),
                        *(f"06{hyphen}{pairs}", f"06{hyphen}{fours}", f"+31{blank}6{blank}{fours}", f"+316{n}"),
                        *(f"+31 (0)6{hyphen}{n}", f"+31(0)6{blank}{pairs}", f"0031{blank}6{blank}{n}", f"(06) {n}"),
                        *(f"+31{hyphen}6{hyphen}{n}", f"06{blank}{self.groups(n, 3, 3, 2, between=blank)}"),
                    ]
                )
            )
        area = draw.choice(["10", "20", "30", "40", "70", "50", "348", "546", "181", "115", "413"])
        rest = self.digits(9 - len(area), "23456789")
        sizes = (3, 2, 2) if len(rest) == 7 else (2, 2, 2)
        written = draw.choice([rest, self.groups(rest, *sizes, between=blank)])
        return str(
            draw.choice(
                [
                    *(f"0{area}{hyphen}{written}", f"0{area} {hyphen} {written}", f"(0{area}) {written}"),
                    *(f"0{area}{blank}{written}", f"0{area}/{rest}", f"+31 (0){area}{blank}{written}"),
                    *(f"+31{blank}{area}{blank}{written}", f"0{area}{rest}", f"0{area}.{rest}"),
                ]
            )
        )

    def mobile_international(self) -> str:
        n = self.mobile()
        return self.draw.choice([f"+31 6 {n}", f"+31\u00a06\u00a0{n}", f"+31 6{n}"])

    def mailbox(self) -> tuple[str, str]:
        draw = self.draw
        first, last = draw.choice(_WORDS["first"]).lower(), draw.choice(_WORDS["last"]).lower().replace(" ", "")
        local = draw.choice(
            [f"{first}.{last}", f"{first[0]}.{last}", f"{first}{last}", f"{first}_{draw.randrange(99)}"]
        )
        return local, draw.choice(_WORDS["domains"])

    def email(self) -> str:
        if self.draw.random() < 0.15:
            return self.spelled_email()
        written = "@".join(self.mailbox())
        return self.draw.choice([written, written, written, written.upper(), f"{written[0].upper()}{written[1:]}"])

    def spelled_email(self) -> str:
        local, _ = self.mailbox()
        domain = self.draw.choice(_SMALL_DOMAINS)
        at, dot = self.draw.choice(
            [
                *((" at ", " dot "), (" at ", " punt "), ("[at]", "[punt]"), (" [at] ", " [dot] "), ("(at)", ".")),
                *((" (at) ", " (punt) "), (" apenstaartje ", " punt "), (" {at} ", " {dot} "), (" AT ", " DOT ")),
                *((" (at) ", "."), ("[at]", "."), ("(apenstaartje)", "(punt)"), (" <at> ", " <dot> ")),
            ]
        )
        return f"{local}{at}{domain}{dot}nl"

    def official_email(self) -> str:
        draw = self.draw
        first, last = draw.choice(_WORDS["first"]).lower(), draw.choice(_WORDS["last"]).lower()
        parts = last.split()
        local = draw.choice(
            [
                *(f"{first}.{''.join(parts)}", f"{first[0]}.{''.join(parts)}", f"{first}.{'.'.join(parts)}"),
                *(f"{first[0]}.{'.'.join(parts)}", f"{first}-{draw.choice('abc')}.{parts[-1]}", f"{parts[-1]}.{first}"),
            ]
        )
        return f"{local}@{draw.choice(_WORDS['bodies'])}"

    def ip(self) -> str:
        if self.draw.random() < 0.15:
            return (
                f"2001:{self.draw.choice(['470', '984', '1c00'])}:{self.draw.randrange(1, 9999)}::{self.digits(2, '1')}"
            )
        first = self.draw.choice(["145", "83", "84", "213", "94", "77", "195"])
        return f"{first}.{self.draw.randrange(8, 120)}.{self.draw.randrange(256)}.{self.draw.randrange(100, 255)}"

    def bsn_digits(self) -> str:
        while True:
            value = self.digits(9, "123456")
            if bsn.is_valid(value):
                return value

    def bsn(self) -> str:
        value = self.bsn_digits()
        dashed = value[:4] + self.hyphen() + value[4:6] + self.hyphen() + value[6:]
        return self.draw.choice(
            [
                value,
                value,
                self.groups(value, 4, 2, 3),
                self.groups(value, 3, 3, 3),
                self.groups(value, 2, 3, 2, 2),
                dashed,
            ]
        )

    def iban(self) -> str:
        bank, account = self.draw.choice(["ABNA", "INGB", "RABO", "TRIO", "KNAB"]), "0" + self.digits(9)
        value = f"NL{mod_97_10.calc_check_digits(f'{bank}{account}NL')}{bank}{account}"
        blank, hyphen = self.blank(), self.hyphen()
        fours = self.groups(value, 4, 4, 4, 4, 2, between=self.draw.choice([blank, blank, hyphen, ".", "  "]))
        return self.draw.choice(
            [
                *(value, fours, fours, fours, f"{value[:8]}{blank}{value[8:]}", value.lower()),
                *(f"{value[:2]} {value[2:4]} {value[4:8]} {value[8:]}", f"{value[:4]} {value[4:8]} {value[8:]}"),
                f"{value[:4]}{blank}{value[4:8]}{blank}{self.groups(account, 4, 2, 2, 2, between='.')}",
                f"{value[:4]} {value[4:8]} {self.groups(account, 1, 3, 3, 3, between=blank)}",
                f"{value[:4]}{hyphen}{value[4:8]}{hyphen}{account}",
                f"{value[:2]} {value[2:4]} {value[4:8]} {self.groups(account, 4, 4, 2, between=blank)}",
            ]
        )

    def card(self) -> str:
        body = self.draw.choice(["4" + self.digits(14), "5" + self.digits(1, "12345") + self.digits(13)])
        value = body + luhn.calc_check_digit(body)
        between = self.draw.choice([self.blank(), self.blank(), self.hyphen(), ""])
        return self.groups(value, 4, 4, 4, 4, between=between)

    def passport(self) -> str:
        letters = "ABCDEFGHIJKLMNPRSTUVWXYZ"
        body = "".join(self.draw.choices(letters + "123456789", k=6))
        return f"{self.draw.choice('NIBS')}{self.draw.choice(letters)}{body}{self.digits(1)}"

    def kvk(self) -> str:
        value = self.digits(8, "123456789")
        return self.draw.choice([value, value, value, self.groups(value, 2, 2, 2, 2), self.groups(value, 4, 4)])

    def plate(self) -> str:
        def letters(number: int) -> str:
            return "".join(self.draw.choices("BDFGHJKLNPRSTVXZ", k=number))

        groups = self.draw.choice(
            [
                *((letters(2), self.digits(2), letters(2)), (self.digits(2), letters(2), letters(2))),
                *((self.digits(2), letters(3), self.digits(1)), (self.digits(1), letters(3), self.digits(2))),
                *((letters(2), self.digits(3), letters(1)), (letters(1), self.digits(3), letters(2))),
            ]
        )
        hyphen = self.hyphen()
        return self.draw.choice([hyphen.join(groups), hyphen.join(groups), "-".join(groups)])

    def vat(self) -> str:
        value, end = self.bsn_digits(), self.draw.choice(["B01", "B01", "B01", "B02"])
        return self.draw.choice(
            [
                *(f"NL{value}{end}", f"NL{value}{end}", f"NL {value} {end}", f"NL-{value}-{end}", f"{value}{end}"),
                *(f"NL{self.groups(value, 4, 2, 3, between='.')}.{end}", f"NL{self.blank()}{value}{end}"),
                *(f"NL.{self.groups(value, 3, 3, 3, between='.')}.{end}", f"nl{value}{end.lower()}"),
                f"NL {self.groups(value, 4, 2, 3, between='.')} {end}",
            ]
        )

    def house(self) -> str:
        number = str(self.draw.randrange(1, 400))
        return self.draw.choice(
            [*(number,) * 6, f"{number}a", f"{number} B", f"{number}-2", f"{number} hs", f"{number}-II"]
        )

    def postcode(self) -> str:
        one, two = self.draw.choices("ABCDEGHJKLMNPRTVWXZ", k=2)
        number = self.digits(4, "13456789")
        return f"{number}{self.draw.choice([' ', ' ', self.blank(), '', '  '])}{one}{two}"

    # An address: the required minimum is between the two marks.

    def address(self) -> str:
        street, between = self.draw.choice(_WORDS["streets"]), self.draw.choice(_BETWEEN)
        return f"{street} {_MARK}{self.house()}{between}{self.postcode()}{_MARK}"

    def csv_address(self) -> str:
        return f"{self.draw.choice(_WORDS['streets'])} {_MARK}{self.house()};{self.postcode()}{_MARK}"

    def split_address(self) -> str:
        street, town = self.draw.choice(_WORDS["streets"]), self.draw.choice(["Postcode", "Postcode en plaats"])
        return f"{street} {_MARK}{self.house()}\n{town}: {self.postcode()}{_MARK}"

    def postcode_first(self) -> str:
        return f"{_MARK}{self.postcode()} {self.town()}, {self.draw.choice(_WORDS['streets'])} {self.house()}{_MARK}"

    def postcode_house(self) -> str:
        return f"{_MARK}{self.postcode()}{self.draw.choice([' ', ', ', ' - ', ' nr. ', '/'])}{self.house()}{_MARK}"

    # Values that are not personal data.

    def eleven(self) -> str:
        return self.bsn_digits()

    def new_vat(self) -> str:
        """Return an id of since 2020 without a BSN: its digits are random, and its check digits are mod 97."""
        body = f"00{self.digits(7)}"
        return f"NL{body}B{mod_97_10.calc_check_digits(f'232100{body}11')}"

    def company(self) -> str:
        while True:
            value = "8" + self.digits(8)
            if bsn.is_valid(value):
                return value

    # Texts.

    def _put(self, passage: str, text: Text) -> None:
        """Add a passage with its values and their positions."""
        last = 0
        for piece in _PIECE.finditer(passage):
            text.text += passage[last : piece.start()]
            last = piece.end()
            self._value(piece[1], text)
        text.text += passage[last:]

    def _value(self, name: str, text: Text) -> None:
        write: Callable[[], str] = getattr(self, name.lower())
        written = write().upper() if name.isupper() else write()
        kind = _KINDS.get(name)
        start = len(text.text)
        if kind == "address":
            head, core, tail = written.split(_MARK)
            text.text += head + core + tail
            text.truth.append(Truth(kind, start, len(text.text), start + len(head), start + len(head) + len(core)))
            return
        text.text += written
        if kind is not None:
            digits = (
                re.search(r"\d[\d. \u00a0\u202f\u2007-]*\d(?=\D{0,2}[Bb]\d\d)|\d{9}", written)
                if name == "vat"
                else None
            )
            core = (start + digits.start(), start + digits.end()) if digits else (start, len(text.text))
            text.truth.append(Truth(kind, start, len(text.text), *core))

    def write(self) -> Text:
        """Return a text of one genre: some of its passages, decoys, and sentences between."""
        genre = _FILE[self.draw.choice(sorted(_FILE))]
        passages = self.draw.sample(genre["passages"], self.draw.randrange(1, 4))
        passages += self.draw.sample(genre["decoys"], self.draw.randrange(0, 3))
        passages += self.draw.sample(_WORDS["sentences"], self.draw.randrange(0, 3))
        self.draw.shuffle(passages)
        text = Text()
        for passage in passages:
            self._put(passage + self.draw.choice(["\n", "\n\n"]), text)
        return text


_KINDS = {
    **{name: name for name in ("telephone", "email", "ip", "bsn", "iban", "passport", "kvk", "address")},
    **{"mobile_international": "telephone", "spelled_email": "email", "official_email": "email", "vat": "bsn"},
    **{"card": "credit_card", "plate": "number_plate"},
    **dict.fromkeys(("csv_address", "split_address", "postcode_first", "postcode_house"), "address"),
}
