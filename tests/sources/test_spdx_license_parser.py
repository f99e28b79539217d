"""A license is parsed from the spellings of data sets, and unrecognized text is not a license."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources.spdx_license_parser import (
    licenses_in,
    normalize_license,
    stringify_license_field,
    suggest_license,
)

CC = "https://creativecommons.org"
WIKIMEDIA = {
    "identifier": "CC-BY-SA-4.0",
    "name": "Creative Commons Attribution-ShareAlike License 4.0",
    "url": f"{CC}/licenses/by-sa/4.0/",
}


@pytest.mark.parametrize(
    ("value", "license"),
    [
        ("CC-BY-NC-ND-4.0", "CC-BY-NC-ND-4.0"),
        ("cc-by-4.0", "CC-BY-4.0"),
        (" CC BY 4.0 ", "CC-BY-4.0"),
        ("CC-BY-SA 3.0", "CC-BY-SA-3.0"),
        ("ccby 4.0", "CC-BY-4.0"),
        ("CC BY-SA 3.0 DE", "CC-BY-SA-3.0-DE"),
        ("Creative Commons Attribution 4.0 International Public License", "CC-BY-4.0"),
        ("Creative Commons Attribution 4.0 International (CC BY 4.0)", "CC-BY-4.0"),
        (f"Creative Commons Attribution 4.0 International License ({CC}/licenses/by/4.0/)", "CC-BY-4.0"),
        ("Creative Commons BY 4.0", "CC-BY-4.0"),
        ("Creative Commons Attribution-NonCommercial-NoDerivatives 4.0", "CC-BY-NC-ND-4.0"),
        ("Creative Commons Naamsvermelding-GelijkDelen 4.0 Internationaal", "CC-BY-SA-4.0"),
        (f"{CC}/licenses/by/4.0/deed.nl", "CC-BY-4.0"),
        ("http://www.creativecommons.org/licenses/by-nc-sa/4.0/legalcode", "CC-BY-NC-SA-4.0"),
        (f"{CC}/licenses/by-nd-nc/1.0/", "CC-BY-NC-ND-1.0"),
        (f"{CC}/licenses/by/3.0/nl/", "CC-BY-3.0-NL"),
        (f"{CC}/licenses/by/3.0/br/deed.pt", "LicenseRef-CC-BY-3.0-BR"),
        (f"{CC}/publicdomain/zero/1.0/", "CC0-1.0"),
        (f"{CC}/publicdomain/mark/1.0/deed.en", "LicenseRef-Public-Domain"),
        (f"Creative Commons - Attribution Share-Alike - {CC}/licenses/by-sa/4.0/", "CC-BY-SA-4.0"),
        (f"Creative Commons - Attribution - {CC}/licenses/by/3.0/br/", "LicenseRef-CC-BY-3.0-BR"),
        (f"Creative Commons Zero - {CC}/publicdomain/zero/1.0/", "CC0-1.0"),
        ("Apache 2 License - https://www.apache.org/licenses/LICENSE-2.0", "Apache-2.0"),
        ("Public Domain", "LicenseRef-Public-Domain"),
        ("CC0", "CC0-1.0"),
        ("Creative Commons Zero v1.0 Universal", "CC0-1.0"),
        ("MIT License", "MIT"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("https://opendatacommons.org/licenses/by/1-0/", "ODC-By-1.0"),
        ("https://spdx.org/licenses/MIT.html", "MIT"),
        ("https://opensource.org/licenses/MIT", "MIT"),
        ("MIT OR GPL-2.0-only", "MIT OR GPL-2.0-only"),
        (["MIT", "Apache-2.0", ""], "Apache-2.0 AND MIT"),
        (["MIT OR Apache-2.0", "cc0"], "(MIT OR Apache-2.0) AND CC0-1.0"),
        ('["cc-by-4.0"]', "CC-BY-4.0"),
        (WIKIMEDIA, "CC-BY-SA-4.0"),
        ([WIKIMEDIA], "CC-BY-SA-4.0"),
    ],
)
def test_license_gets_its_official_spelling(value: Any, license: str) -> None:
    written = stringify_license_field(value)
    assert written is not None and normalize_license(written, {}) == license


@pytest.mark.parametrize(
    "value",
    [
        *("CC-BY", "CC-By-SA", "creative commons attribution", "BY 4.0", "CC BY-NC-SA", "CC NC 4.0"),
        *("permissive", "Proprietary", "all rights reserved", "other", "unknown", "NOASSERTION", "nan"),
        *("Not CC BY 4.0", "CC BY 4.0 except images", "CC BY 4.0 / CC BY-NC 4.0", "CC BY 4.0 and CC BY-NC 4.0"),
        *("BSD License", "GNU Free Documentation License", "[", "[x", '{"a": ', "[" * 100_000, "true", "-"),
        *("Creative Commons Attribution (CC BY)", "Creative Commons Attribution 4.0 International (CC BY-NC 4.0)"),
        *("CC BY 4.0 (images: CC BY-NC 4.0)", "CC BY-NC (CC BY 4.0)", "(CC BY 4.0) (MIT)", "Creative Commons"),
        f"CC BY-SA 4.0 {CC}/licenses/by/4.0/",
        f"Creative Commons - Attribution Share-Alike - {CC}/licenses/by/4.0/",
        f"Creative Commons - Attribution - {CC}/licenses/by-nc/4.0/",
        f"{CC}/licenses/by/4.0/ {CC}/licenses/by-nc/4.0/",
        f"{CC}/licenses/by/",
        f"{CC}/licenses/by/4.0/nl/more/",
        f"{CC}/licenses/by/4.0/2024/",
        "https://creativecommons.org.example/licenses/by/4.0/",
        "https://example.org/creativecommons.org/licenses/by/4.0/",
        "http://arxiv.org/licenses/nonexclusive-distrib/1.0/",
        ["MIT", "permissive"],
        {"identifier": "CC-BY-4.0", "url": f"{CC}/licenses/by-nc/4.0/"},
        {"author": "MIT"},
    ],
)
def test_unrecognized_text_is_not_a_license(value: Any) -> None:
    written = stringify_license_field(value)
    assert written is not None and normalize_license(written, {}) is None


@pytest.mark.parametrize("value", [None, "", "  ", [], {}, [None, ""], {"name": None}, float("nan")])
def test_empty_value_is_not_a_license(value: Any) -> None:
    assert stringify_license_field(value) is None


def test_source_maps_its_own_license_words_also_in_lists() -> None:
    names = {"cc-by": "CC-BY-4.0", "mit": "Apache-2.0"}
    assert normalize_license("CC-By", names) == "CC-BY-4.0"
    assert normalize_license('["CC-BY", "MIT"]', names) == "Apache-2.0 AND CC-BY-4.0"
    assert normalize_license("mit", names) == "Apache-2.0"
    assert normalize_license(unicodedata.normalize("NFD", "Vrije reünie"), {"vrije reünie": "MIT"}) == "MIT"


KINDS = st.sampled_from(["by", "by-sa", "by-nc", "by-nd", "by-nc-sa", "by-nc-nd"])
SPELLINGS = st.sampled_from(
    [
        "cc-{0}-{1}",
        "CC {0} {1}",
        "CC-{0} v{1}",
        CC + "/licenses/{0}/{1}/",
        "http://creativecommons.org/licenses/{0}/{1}/deed.nl",
        "Creative Commons {0} {1} International",
        '[{{"identifier": "CC-{0}-{1}"}}]',
    ]
)


@given(KINDS, st.sampled_from(["2.0", "3.0", "4.0"]), SPELLINGS)
def test_every_spelling_of_a_license_is_recognized(kind: str, version: str, spelling: str) -> None:
    assert normalize_license(spelling.format(kind, version), {}) == f"CC-{kind.upper()}-{version}"


@given(st.lists(st.sampled_from(["MIT", "CC0-1.0", "CC-BY-4.0", "vrij", "MIT OR ISC"]), min_size=1))
def test_license_list_keeps_every_license(values: list[str]) -> None:
    result = normalize_license(str(stringify_license_field(values)), {})
    if "vrij" in values:
        assert result is None
    else:
        assert result is not None
        assert set(licenses_in(result)) == {name for value in values for name in value.split(" OR ")}


@given(st.text(max_size=40) | st.recursive(st.none() | st.text(max_size=9), lambda part: st.lists(part, max_size=3)))
def test_any_value_is_parsed_without_an_exception(value: Any) -> None:
    written = stringify_license_field(value)
    if written is not None:
        normalize_license(written, {})
        assert json.dumps(written)


def test_deeply_nested_list_is_not_a_license() -> None:
    nested: Any = "MIT"
    for _ in range(100_000):
        nested = [nested]
    written = stringify_license_field(nested)
    assert written is not None and normalize_license(written, {}) is None


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("CC-BY", "CC-BY-4.0"),
        ("cc by-sa", "CC-BY-SA-4.0"),
        ("Creative Commons Attribution", "CC-BY-4.0"),
        ("CC0", "CC0-1.0"),
        ("Apache", "Apache-2.0"),
        ("OLDAP", "OLDAP-2.8"),
        ("GPL", "GPL-1.0-only, GPL-1.0-or-later, GPL-2.0-only, GPL-2.0-or-later, GPL-3.0-only or GPL-3.0-or-later"),
        ("BSD", "BSD-1-Clause, BSD-2-Clause, BSD-3-Clause or BSD-4-Clause"),
        ("MIT", "MIT"),
        ("Apache-2.00", "Apache-2.0"),
        ("foo", None),
        (" ", None),
    ],
)
def test_license_without_version_is_answered_with_its_versions(written: str, suggested: str | None) -> None:
    assert suggest_license(written) == suggested
