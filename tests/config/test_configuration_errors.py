"""A mistake in a configuration is named with its file, line and key, and the way out."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.config.configuration import parse_configuration
from pipeline.config.configuration_errors import Origin, format_validation_error
from pipeline.core.errors import InputError, InputErrors
from pipeline.core.yaml_files import load_yaml
from pipeline.energy.settings import Energy

FILE = """# two sources
run: {name: r, seed: 1}
sources:
  - {name: laws, path: x.txt, language: nl, license: CC0-1.0, rights: &rights {basis: public-domain, holder: me}}
  - name: letters
    path: y.txt
    language: nl
    license: CC0-1.0
    units: 2
    rights: *rights
"""
SOURCE = {"name": "s", "path": "x.txt", "language": "nl", "license": "CC0-1.0"}
SOURCE |= {"rights": {"basis": "public-domain", "holder": "me"}}


@pytest.mark.parametrize(
    ("old", "new", "changes", "message"),
    [
        ("units: 2", "unitss: 2", {}, "c.yaml, line 9: unknown key sources.letters.unitss: did you mean 'units'?"),
        ("units: 2", "units: yes", {}, "c.yaml, line 9: sources.letters.units: true, false"),
        ("units: 2", "units: 0", {}, "c.yaml, line 9: sources.letters.units: write 1 or more (given: '0')"),
        ("language: nl,", "", {}, "c.yaml, line 4: the key sources.laws.language is missing"),
        ("run: {", "runn: {", {}, "c.yaml, line 2: unknown key runn: did you mean 'run'?"),
        ("{name: r, seed: 1}", "mine", {}, "c.yaml, line 2: run is text, but needs keys: write `run: {name: mine}`"),
        ("{name: r, seed: 1}", "", {}, "c.yaml, line 2: run is empty, but needs keys: write `run: {name: …}`"),
        ("name: r,", "name: My run,", {}, "c.yaml, line 2: run.name: use lower case letters, digits, - and _ alone, s"),
        ("seed: 1", "seed: 2k", {}, "c.yaml, line 2: run.seed: write a whole number without unit, such as 2048 (given"),
        (
            "units: 2",
            "damaged_share: 0,5",
            {},
            "c.yaml, line 9: sources.letters.damaged_share: write a number "
            "with a point and without unit, such as 0.5 (given: '0,5')",
        ),
        ("seed: 1", "retrain: base", {}, "c.yaml, line 2: run.retrain needs a list: write `retrain: [base]`"),
        ("seed: 1", "provider: 12", {}, "c.yaml, line 2: run.provider: this must be text, and YAML reads this as"),
        ("seed: 1", "provider_url: x.nl", {}, "c.yaml, line 2: run.provider_url: write an address that begins with"),
        ("seed: 1", "environment: cude", {}, "c.yaml, line 2: run.environment: there is no 'cude': did you mean 'cuda"),
        ("holder: me", "holder: me, date: 21-11-2026", {}, "c.yaml, line 4: sources.laws.rights.date: write 2026-11-2"),
        ("CC0-1.0, ri", "CC BY 4.0, ri", {}, "c.yaml, line 4: sources.laws.license: 'CC BY 4.0' is no SPDX license: d"),
        ("CC0-1.0, ri", "CCO-1.0, ri", {}, "c.yaml, line 4: sources.laws.license: 'CCO-1.0' is no SPDX license: did y"),
        ("units: 2", "page_reservations: maybe", {}, "c.yaml, line 9: sources.letters.page_reservations: write true o"),
        ("units: 2", "damaged_share: 5", {}, "c.yaml, line 9: sources.letters.damaged_share: write a fraction between"),
        ("name: letters", "name: laws", {}, "c.yaml, line 5: sources.laws.name: two sources have this name: give each"),
        ("run: {", "slurm: {time: 4h}\nrun: {", {}, "c.yaml, line 2: unknown key slurm.time: time limits come from th"),
        ("run: {", "models: [{name: base}]\nrun: {", {}, "c.yaml, line 2: models is a list, but needs keys: write `mo"),
        ("run: {", "platform: snelius\nrun: {", {}, "c.yaml, line 2: platform: there is no 'snelius': did you mean 's"),
        ("run: {", "allowed_licenses: [MIT]\nrun: {", {}, "c.yaml, line 5: source laws has the license CC0-1.0, which"),
        ("run: {", "tokens: {m: {corpus: mian}}\nrun: {", {}, "c.yaml, line 2: tokens.m.corpus: there is no 'mian': d"),
        ("run: {", "corpus: {main: {exclude_sources: [law]}}\nrun: {", {}, "c.yaml, line 2: corpus.main.exclude_sourc"),
        ("", "", {"sources": [SOURCE, SOURCE, {**SOURCE, "unit": 1}]}, "configuration: unknown key sources.s.unit"),
        ("", "", {"run": {"seed": 1}}, "configuration: the key run.name is missing"),
        ("", "", {"run": {"name": "r", "seed": -1}}, "configuration: run.seed: write 0 or more (given: '-1')"),
    ],
)
def test_configuration_error_has_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "c.yaml"
    file.write_text(FILE.replace(old, new, 1) if old else FILE)
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        parse_configuration({**load_yaml(file), **changes}, [file])


def test_all_mistakes_of_a_configuration_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    text = FILE.replace("seed: 1", "sed: 2k").replace("units: 2", "units: two").replace("language: nl,", "")
    training = "{steps: -1, batch_size: 1, micro_batch_size: 1, sequence_length: 8, learning_rate: 1}"
    text += f"corpus: {{main: {{decontamination: 7}}}}\nmodels: {{m: {{tokens: t, training: {training}}}}}\n"
    file.write_text(text)
    with pytest.raises(InputErrors) as caught:
        parse_configuration(load_yaml(file), [file])
    assert [re.sub(r"^.*/c.yaml, line (\d+): ([^:]*).*", r"\1 \2", line) for line in caught.value.sentences] == [
        "2 unknown key run.sed",
        "4 the key sources.laws.language is missing",
        "9 sources.letters.units",
        "11 corpus.main.decontamination is one value, but needs keys",
        "12 the key models.m.architecture is missing",
        "12 models.m.training.steps",
    ]


def test_value_of_several_types_is_one_mistake() -> None:
    raw: dict[str, Any] = {"run": {"name": "r", "seed": 1}, "sources": [SOURCE]}
    with pytest.raises(InputErrors) as caught:
        parse_configuration({**raw, "evaluation": {"suites": ["klingon", {"name": "mine"}]}})
    wrong, incomplete = caught.value.sentences
    assert wrong.startswith("configuration: evaluation.suites.0: choose one of dutch, english,")
    assert incomplete == "configuration: the key evaluation.suites.mine.language is missing: write it"


def test_many_mistakes_are_shortened() -> None:
    with pytest.raises(InputErrors) as caught:
        parse_configuration({"sources": [], **{f"odd_{number}": 1 for number in range(20)}})
    *first, last = caught.value.sentences
    assert len(first) == 8 and last.endswith("and 14 more: correct these first")
    raw: dict[str, Any] = {"run": {"name": "r", "seed": 1}, "sources": [SOURCE]}
    with pytest.raises(InputErrors) as caught:
        parse_configuration({**raw, **{f"odd_{number}": 1 for number in range(8)}})
    assert len(caught.value.sentences) == 8 and all("unknown key odd_" in one for one in caught.value.sentences)


def test_mistakes_without_the_written_content_are_one_sentence() -> None:
    with pytest.raises(ValidationError) as caught:
        Energy.model_validate({"pue": "high", "calibration": 7})
    sentence = format_validation_error(caught.value, Energy, "x.yaml")
    assert sentence.startswith("x.yaml: ") and "\n" not in sentence


def test_sentence_gets_the_line_of_its_deepest_key_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(FILE)
    origin = Origin(load_yaml(file), [file])
    for sentence, line in (("run.retrain.x: y", 2), ("source letters: no file y.txt", 6), ("source letters: odd", 5)):
        assert origin.prefix_source_location(sentence) == f"{file}, line {line}: {sentence}"
    assert [origin.prefix_source_location(text) for text in ("source x y", "odd: y", "")] == [
        f"{file}, line 3: source x y",
        "odd: y",
        "",
    ]


def test_error_names_the_overriding_file_of_two(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(FILE.replace("seed: 1", "seed: many"))
    second.write_text("\n\nrun: {name: r, seed: many}\n")
    with pytest.raises(InputError, match=f"^{second}, line 3: run.seed: "):
        parse_configuration({**load_yaml(first), **load_yaml(second)}, [first, second])


def test_error_in_json_that_is_not_yaml_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{\n\t"run": {"name": "a\x7f", "seed": 1, "sead": 2},\n\t"sources": []\n}\n')
    with pytest.raises(InputError, match=r"unknown key run\.sead: did you mean 'seed'"):
        parse_configuration(load_yaml(file), [file])
