"""Seeded Dutch and English texts with invented personal data in many forms, and with decoy numbers.

Every value is built from the definition of its kind (weights, check digits, areas, sidecodes), never from the
expressions that search for it. A text knows the positions of its personal data.
"""

from __future__ import annotations

import random
import string
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

WORDS = tomllib.loads((Path(__file__).parent / "texts.toml").read_text(encoding="utf-8"))
LETTERS = "BDFGHJKLNPRSTVXZ"


class Truth(NamedTuple):
    """Personal data at text[start:end]; for an address, the required minimum is text[core_start:core_end]."""

    kind: str
    start: int
    end: int
    core_start: int
    core_end: int


@dataclass
class Text:
    """A text and the positions of its personal data."""

    text: str = ""
    truth: list[Truth] = field(default_factory=list)


class Writer:
    """Write texts; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def digits(self, number: int, first: str = string.digits) -> str:
        """Return the given number of digits, the first one from a set."""
        return self.draw.choice(first) + "".join(self.draw.choices(string.digits, k=number - 1))

    def form(self, value: str, *forms: str) -> str:
        """Return the value in one of the forms, in which # takes its next character."""
        characters = iter(value)
        return "".join(next(characters) if mark == "#" else mark for mark in self.draw.choice(forms))

    def eleven(self) -> str:
        """Return nine digits with a weighted sum (9, 8, … 2, -1) that is a multiple of eleven."""
        while True:
            body = self.digits(8, "123456789")
            last = sum(weight * int(digit) for weight, digit in zip(range(9, 1, -1), body, strict=True)) % 11
            if last < 10:
                return f"{body}{last}"

    def luhn(self, start: str, length: int) -> str:
        """Return digits of that length with the check digit of payment cards."""
        body = start + "".join(self.draw.choices(string.digits, k=length - 1 - len(start)))
        total = sum(sum(divmod(int(d) * (2 - i % 2), 10)) for i, d in enumerate(reversed(body)))
        return f"{body}{-total % 10}"

    def bsn(self) -> str:
        return self.form(self.eleven(), "#" * 9, "#" * 9, "####.##.###", "###.###.###", "### ### ###", "#### ## ###")

    def iban(self) -> str:
        country, account = self.draw.choice(
            [
                *[("NL", self.draw.choice(["ABNA", "INGB", "RABO", "TRIO", "SNSB"]) + "0" + self.digits(9))] * 4,
                ("DE", self.digits(18, "12345")),
                ("BE", (body := self.digits(10, "123456")) + f"{int(body) % 97 or 97:02d}"),
                ("GB", "WEST" + self.digits(14)),
                ("AT", self.digits(16)),
            ]
        )
        as_number = "".join(str(int(character, 36)) for character in account + country + "00")
        whole = f"{country}{98 - int(as_number) % 97:02d}{account}"
        spaced = " ".join(whole[i : i + 4] for i in range(0, len(whole), 4))
        return self.draw.choice([whole, spaced, spaced, spaced.replace(" ", "."), whole.lower()])

    def telephone(self) -> str:
        choice = self.draw.random()
        if choice < 0.45:
            number = self.draw.choice("123458") + self.digits(7)
            return self.form(
                number,
                *("06-########", "06 ########", "06########", "06 ## ## ## ##", "06-## ## ## ##", "+316########"),
                *("+31 6 ########", "+31 (0)6 ########", "0031 6 ########", "(06) ########", "06.##.##.##.##"),
                *(
                    "+31-6-########",
                    "+31 6 ## ## ## ##",
                    "06 - ########",
                    "06-#### ####",
                    "00316########",
                    "(+31) 6 ########",
                    "+31.6.########",
                    "+31 (0) 6 ########",
                ),
            )
        if choice < 0.8:
            area = self.draw.choice(WORDS["areas"])
            number, short = self.digits(10 - len(area), "234567"), area[1:]
            groups = "###" + (" ## ##" if len(area) == 3 else " ###")
            forms = [f"{area}-{'#' * len(number)}", f"{area} {groups}", f"({area}) {groups}", f"+31 {short} {groups}"]
            forms += [f"{area} - {groups}", f"+31 (0){short} {groups}", f"+31(0){short}{'#' * len(number)}"]
            return self.form(number, *forms, f"0031-{short}-{'#' * len(number)}", f"{area}{'#' * len(number)}")
        return self.draw.choice(
            [
                f"+32 47{self.form(self.digits(7), '# ## ## ##', '#/######')}",
                f"+49 30 {self.digits(8, '23456789')}",
                f"+44 20 7{self.form(self.digits(7, '2345'), '### ####')}",
                f"+33 6 {self.form(self.digits(8, '1234567'), '## ## ## ##')}",
                f"+1 212-{self.digits(3, '3456')}-{self.digits(4)}",
                f"(415) {self.digits(3, '3456')}-{self.digits(4)}",
                f"617-{self.digits(3, '3456')}-{self.digits(4)}",
            ]
        )

    def email(self) -> str:
        first, last = self.draw.choice(WORDS["first_names"]).lower(), self.draw.choice(WORDS["last_names"]).lower()
        year, host = self.draw.randrange(50, 99), self.draw.choice(WORDS["hosts"])
        local = [
            f"{first}.{last}",
            f"{first[0]}.de.{last}",
            f"{first}_{last}{year}",
            f"{first}+post",
            f"{last}-{first}",
        ]
        local += [f"{first}{year}", f"{first[0]}{last}", f"{first}.van.der.{last}", f"{first.title()}.{last.title()}"]
        name = self.draw.choice(local)
        return f"{name} [at] {host}" if self.draw.random() < 0.05 else f"{name}@{host}"

    def ip(self) -> str:
        if self.draw.random() < 0.7:
            first = self.draw.choice([31, 46, 62, 77, 80, 82, 84, 145, 185, 194, 212, 217])
            return f"{first}.{self.draw.randrange(100, 160)}.{self.draw.randrange(256)}.{self.draw.randrange(1, 255)}"
        groups = [f"{self.draw.randrange(1, 2**16):x}" for _ in range(6)]
        return self.draw.choice(
            [f"2a02:{':'.join(groups[:3])}::{groups[3]}", f"2001:{groups[0]}9:{':'.join(groups[:2])}::1"]
            if len(groups[0]) < 4
            else [f"2a10:3781:{':'.join(groups)}", f"2A02:A45F:{groups[1].upper()}::{groups[2].upper()}"]
        )

    def kvk(self) -> str:
        return self.form(self.digits(8, "1234567"), "#" * 8, "#" * 8, "#" * 8, "#### ####", "##.##.##.##")

    def number_plate(self) -> str:
        marks = {"X": LETTERS, "9": string.digits}
        code = self.draw.choice(WORDS["sidecodes"])
        return "".join(self.draw.choice(marks[mark]) if mark in marks else mark for mark in code)

    def credit_card(self) -> str:
        start, length = self.draw.choice(
            [("4", 16), ("4", 16), ("53", 16), ("2221", 16), ("37", 15), ("6011", 16), ("36", 14)]
        )
        number = self.luhn(start, length)
        if length == 16:
            return self.form(number, "#" * 16, "#### #### #### ####", "####-####-####-####")
        return self.form(number, "#" * length, "#### ###### " + "#" * (length - 10))

    def passport(self) -> str:
        letters = string.ascii_uppercase.replace("O", "")
        middle = self.draw.choices(letters + string.digits * 3, k=6)
        return "".join([*self.draw.choices("NBISX", k=1), *self.draw.choices(letters, k=1), *middle, self.digits(1)])

    def address(self) -> tuple[str, str]:
        """Return an address and its required minimum: the house number and the postcode."""
        street, town = self.draw.choice(WORDS["streets"]), self.draw.choice(WORDS["towns"])
        house = str(self.draw.randrange(1, 400)) + self.draw.choice(
            ["", "", "", "a", "-2", " bis", "-B", "-III", " hs"]
        )
        letters = self.draw.choice("ABCDEGHJKLMNPRSTVWXZ") + self.draw.choice("BCEGHJKLMNPRTVWXZ")
        code = f"{self.draw.randrange(1011, 9999)}{self.draw.choice([' ', ' ', '', ' '])}{letters}"
        core = self.draw.choice([f"{house}, {code}", f"{house}, {code}", f"{house} {code}", f"{house}\n{code}"])
        if self.draw.random() < 0.65:
            return f"{street} {core}" + self.draw.choice([f" {town}", f" {town}", ""]), core
        core = self.draw.choice(
            [f"{code} {house}", f"{code}, {house}", f"{code} nr. {house}", f"{code}, huisnummer {house}"]
        )
        return core, core

    def value(self, kind: str) -> tuple[str, str]:
        """Return a value of a kind, and its required minimum."""
        if kind == "address":
            return self.address()
        value: str = getattr(self, kind)()
        return value, value

    def decoy(self) -> str:
        """Return a decoy."""
        chosen = self.draw.choice(WORDS["decoys"])
        written = "".join(self.digits(1) if character == "#" else character for character in chosen)
        return written.replace("{eleven}", self.eleven()).replace("{luhn}", self.luhn("4", 16))

    def write(self) -> Text:
        """Return one text: ordinary sentences with personal data and decoys among them."""
        made = Text()
        words = WORDS["nl" if self.draw.random() < 0.6 else "en"]
        frames = words["frames"]
        parts = self.draw.choices(["prose", "value", "decoy"], weights=[10, 3, 3], k=self.draw.randrange(8, 24))
        for part in parts:
            if part == "prose":
                made.text += self.draw.choice(words["prose"])
            elif part == "decoy":
                made.text += self.decoy()
            else:
                kind = self.draw.choice(sorted(frames))
                before, after = self.draw.choice(frames[kind]).split("@", 1)
                value, core = self.value(kind)
                start = len(made.text) + len(before)
                place = start + value.index(core)
                made.truth.append(Truth(kind, start, start + len(value), place, place + len(core)))
                made.text += before + value + after
            # A part that is not a sentence is on its own line.
            made.text += self.draw.choice([" ", " ", " ", "\n", "\n\n"] if made.text[-1] in ".!?" else ["\n", "\n\n"])
        return made
