"""Licenses are SPDX expressions that a run may forbid; opt-out lists are read in their formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.opt_out.lists import read_opt_out_list
from pipeline.sources.settings import Dataset, OptOut, Source
from pipeline.sources.spdx_license_parser import are_equivalent, canonicalize_spdx_expression, is_allowed

SOURCE: dict[str, Any] = {"name": "wetten", "path": "config/corpus/nl_gids.jsonl", "language": "nl"}
RIGHTS: dict[str, Any] = {"basis": "statute", "holder": "Staten-Generaal", "contact": "info@voorbeeld.nl"}


def configured(license: str, **keys: Any) -> dict[str, Any]:
    return {"run": {"name": "t"}, "sources": [{**SOURCE, "license": license, "rights": RIGHTS}], **keys}


@pytest.mark.parametrize(
    ("written", "official"),
    [
        ("cc0-1.0", "CC0-1.0"),
        ("LicenseRef-Public-Domain", "LicenseRef-Public-Domain"),
        ("mit or (apache-2.0 with llvm-exception)", "MIT OR (Apache-2.0 WITH LLVM-exception)"),
        ("CC-BY-4.0 AND CC0-1.0", "CC-BY-4.0 AND CC0-1.0"),
    ],
)
def test_license_expression_gets_its_official_spelling(written: str, official: str) -> None:
    assert canonicalize_spdx_expression(written) == official


@pytest.mark.parametrize("written", ["public domain", "CC-BY", "MIT AND", "(MIT", "", "Ref-Own"])
def test_invalid_license_expression_is_reported(written: str) -> None:
    with pytest.raises(InputError, match=r"sources\.wetten\.license: "):
        parse_configuration(configured(written))


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT AND (GPL-3.0-only OR CC0-1.0)", True),
        ("GPL-3.0-only OR MIT AND CC0-1.0", True),
        ("(GPL-3.0-only OR MIT) AND GPL-2.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", True),
        ("LGPL-3.0-only AND BSD-3-Clause", True),
    ],
)
def test_expression_is_allowed_if_the_list_satisfies_it(expression: str, allowed: bool) -> None:
    licenses = ["MIT", "CC0-1.0", "GPL-2.0-only WITH Classpath-exception-2.0", "LGPL-3.0-only AND BSD-3-Clause"]
    assert is_allowed(canonicalize_spdx_expression(expression), licenses) == allowed


def test_disallowed_license_stops_the_run_by_name() -> None:
    parse_configuration(configured("CC-BY-NC-4.0"))
    parse_configuration(configured("CC-BY-4.0", allowed_licenses=["cc-by-4.0"]))
    for allowed in (["CC0-1.0", "CC-BY-4.0"], []):
        with pytest.raises(InputError, match=r"source wetten has the license CC-BY-NC-4\.0, which allowed_licenses"):
            parse_configuration(configured("CC-BY-NC-4.0", allowed_licenses=allowed))


@pytest.mark.parametrize("name", ["config", "micro", "open-text", "ladder", "grid"])
def test_shipped_configurations_use_spdx_licenses(name: str) -> None:
    raw = yaml.safe_load(Path(f"config/{name}.yaml").read_text())
    config = parse_configuration({**raw, "data": "x"})
    assert [source.license for source in config.sources] == [source["license"] for source in raw["sources"]]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rights", {**RIGHTS, "basis": "found it"}, "basis"),
        ("rights", {**RIGHTS, "date": "yesterday"}, "date"),
        ("rights", {"basis": "license"}, "holder"),
        ("dataset", {"name": "nergens/niets"}, "40 hexadecimal digits"),
        ("dataset", {"name": "nergens/niets", "revision": "main"}, "a branch or a tag can change"),
        ("dataset", {"name": "config/corpus"}, "either path or dataset"),
        ("path", None, "either path or dataset"),
    ],
)
def test_incomplete_source_description_is_reported(key: str, value: Any, words: str) -> None:
    raw = configured("CC0-1.0")
    raw["sources"][0][key] = value
    with pytest.raises(InputError, match=words):
        parse_configuration(raw)


def test_date_may_be_quoted_or_unquoted() -> None:
    for date in ("2026-11-21", yaml.safe_load("2026-11-21")):
        source = Source.model_validate({**SOURCE, "license": "MIT", "rights": {**RIGHTS, "date": date}})
        assert source.model_dump(mode="json")["rights"]["date"] == "2026-11-21"


def test_hub_data_set_is_pinned_to_a_commit() -> None:
    assert not Dataset(name="nergens/niets", revision="0" * 40).is_folder()
    assert Dataset(name="config/corpus").is_folder()


YAML = "date: 2026-01-02\ndomains: ['*.Voorbeeld.NL', b.nl, b.nl]\nids: [a, 007, no]\nholders: [De Krant]\n"
JSON = (
    '{"date": "2026-01-02", "domains": ["voorbeeld.nl", "b.nl"],\n\t"ids": ["a", "007", "no"], "holders": ["De Krant"]}'
)
TEXT = "# lijst\ndate: 2026-01-02\r\nVoorbeeld.nl.\n\nid: a\nid: 007\nid: no\ndomain: b.nl\nholder: De Krant\n"


@pytest.mark.parametrize(("name", "content"), [("x.yaml", YAML), ("x.json", JSON), ("x.txt", TEXT)])
def test_opt_out_list_is_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    expected = OptOut(date="2026-01-02", domains=["b.nl", "voorbeeld.nl"], ids=["007", "a", "no"], holders=["De Krant"])
    assert read_opt_out_list(tmp_path / name) == expected


def test_empty_opt_out_list_excludes_nobody(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("")
    (tmp_path / "x.yaml").write_text("")
    assert read_opt_out_list(tmp_path / "x.txt") == read_opt_out_list(tmp_path / "x.yaml") == OptOut()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.txt", b"https://voorbeeld.nl/pad", "is no domain"),
        ("x.txt", b"date: gisteren", "YYYY-MM-DD"),
        ("x.txt", b"\xff", "is no opt-out list"),
        ("x.yaml", b"- a", "is no opt-out list"),
        ("x.yaml", b"domain: [a.nl]", "domain"),
        ("x.yaml", b"a: b: c", "is not valid YAML"),
        (
            "x.yaml",
            b"domains: [a.nl]\nids: ['1']\ndomains: [b.nl]",
            r"x\.yaml, line 3: the key domains occurs twice",
        ),
        ("x.json", b'{"ids": ["1"],\n\t"ids": []}', r"x\.json, line 2: the key ids occurs twice"),
        ("x.txt", b"date: 2026-01-02\na.nl\ndate: 2026-01-03", "two dates"),
        ("x.txt", b"ids: 7", "is no domain"),
        ("x.txt", b"a.nl;b.nl", "is no domain"),
        ("x.yaml", b"domains: ['a.nl|b.nl']", "is no domain"),
    ],
)
def test_invalid_opt_out_list_is_reported(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_opt_out_list(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(InputError, match="is no opt-out list"):
        read_opt_out_list(tmp_path / "nowhere.txt")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("MIT OR Apache-2.0", "Apache-2.0 OR MIT", True),
        ("MIT AND (GPL-2.0-only OR CC0-1.0)", "(CC0-1.0 OR GPL-2.0-only) AND MIT", True),
        ("MIT OR Apache-2.0", "MIT AND Apache-2.0", False),
        ("MIT", "MIT OR Apache-2.0", False),
        ("MIT AND Apache-2.0 OR ISC", "MIT AND (Apache-2.0 OR ISC)", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0 OR MIT", "MIT OR GPL-2.0-only", False),
    ],
)
def test_reordered_expressions_are_equivalent(one: str, other: str, same: bool) -> None:
    assert are_equivalent(canonicalize_spdx_expression(one), canonicalize_spdx_expression(other)) == same
    assert are_equivalent(canonicalize_spdx_expression(other), canonicalize_spdx_expression(one)) == same
