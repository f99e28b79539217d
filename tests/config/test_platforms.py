"""Platform files: each figure has a source, PUE and carbon have defaults, an error is one sentence."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import platforms
from pipeline.config.configuration import Config, parse_configuration
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.workflow.steps import step_settings

MICRO = yaml.safe_load(Path("config/micro.yaml").read_text())

# An added file belongs to the user.
SHIPPED = ("alps", "jean-zay", "jupiter", "juwels-booster", "leonardo", "local", "lumi", "marenostrum5", "snellius")


def run(**sections: Any) -> Config:
    return parse_configuration({**copy.deepcopy(MICRO), **sections})


@pytest.mark.parametrize("name", SHIPPED)
def test_every_block_of_facts_cites_a_source(name: str) -> None:
    text = (platform_files.PLATFORMS / f"{name}.yaml").read_text()
    described = platforms.load_platform_settings(name)
    for figure, source in {"pue": "pue_source", "carbon_intensity_grams_per_kwh": "carbon_intensity_source"}.items():
        if figure in described.energy.model_fields_set:
            assert "stated in the configuration" not in getattr(described.energy, source)
    if name != "local":
        assert "Not run there yet" in text
        assert len(re.findall(r"https://|data sheet|[Ss]econd-hand", text)) >= 8


def test_template_lists_every_key_and_is_not_a_platform() -> None:
    text = (platform_files.PLATFORMS / "template.yaml").read_text()
    keys = set(re.findall(r"^(?:# )?(\w+):", text, re.MULTILINE))
    assert set(platforms.Platform.model_fields) <= keys
    with pytest.raises(InputError, match=r"template is no machine: copy workflow/platforms/template.yaml"):
        run(platform="template")
    without_comments = re.sub(r"^# (?=\w+:|  )", "", text, flags=re.MULTILINE)
    platforms.Platform.model_validate(yaml.safe_load(without_comments))


def test_report_gets_the_platforms_series_and_price_without_foreign_defaults() -> None:
    series = {"path": "grid.csv", "grams_per_kwh": "grams", "place": "Utopia", "source": "a table"}
    alone = step_settings(run(energy={"carbon_intensity_series": series}), "report.page", {}).result_settings()
    assert alone["carbon_intensity_series"] == {**series, "time": "time"}
    assert alone["carbon_intensity_grams_per_kwh"] is None and alone["carbon_intensity_place"] is None
    assert alone["price_euros_per_device_hour"] is None and alone["price_source"] is None
    with_site = run(energy={"carbon_intensity_series": series}, platform="lumi")
    report_settings = step_settings(with_site, "report.page", {}).result_settings()
    assert (report_settings["carbon_intensity_grams_per_kwh"], report_settings["carbon_intensity_place"]) == (
        145.541,
        "Finland",
    )
    priced = with_site.platform.model_copy(update={"price_euros_per_device_hour": 2.5, "price_source": "a list"})
    report_settings = step_settings(
        with_site.model_copy(update={"platform": priced}), "report.page", {}
    ).result_settings()
    assert (report_settings["price_euros_per_device_hour"], report_settings["price_source"]) == (2.5, "a list")


def test_template_is_not_offered_for_an_unknown_platform() -> None:
    with pytest.raises(InputError, match=rf"choose one of {', '.join(platform_files.list_platforms())}$"):
        run(platform="../platforms/local")
    assert "template" not in platform_files.list_platforms() and set(SHIPPED) <= {*platform_files.list_platforms()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: other", "must hold keys, the first of them name: mine"),
        ("- a list", "must hold keys"),
        ("name: [", "not valid YAML"),
        ("name: mine\ndevices: 1\ndevices: 2", "mine.yaml, line 3: the key devices occurs twice"),
        ("name: mine\nslurm:\n  cpus: 010", "mine.yaml, line 3: YAML reads 010 as another number"),
        ("name: mine\nlanch: srun", "workflow/platforms/mine.yaml: unknown key lanch: did you mean 'launch'?"),
        ("name: mine\ndevices: many", "mine.yaml: devices: .*given: 'many'"),
        (
            "name: mine\nlaunch: srun -c many",
            "mine.yaml: launch: .*srun's --cpus-per-task is 'many': write it as a whole",
        ),
        ("name: mine\nlaunch: srun 'x", r"(?<!launch: )launch: srun 'x is not a command line .*: close its quotes"),
        (
            "name: mine\ndevices: 8\npartitions: {gpu: {name: g, cpus: 1, memory_megabytes: 1, minutes: 1, gpus: 4}}",
            "mine.yaml: devices is 8, but a node of the partition gpu has 4 gpus: write devices: 4",
        ),
    ],
)
def test_error_in_a_platform_file_is_one_sentence(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform_files, "PLATFORMS", tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    for read in (lambda: platforms.load_platform_settings("mine"), lambda: run(platform="mine")):
        with pytest.raises(InputError, match=words) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_pue_and_carbon_fall_back_from_run_to_platform_to_default() -> None:
    assert run().emission_settings.pue == 1.2
    assert run(platform="snellius").emission_settings.pue == 1.19
    assert "surf.nl" in run(platform="snellius").emission_settings.pue_source
    own = run(platform="lumi", energy={"pue": 1.4}).emission_settings
    assert (own.pue, own.pue_source) == (1.4, "stated in the configuration")
    assert own.carbon_intensity_grams_per_kwh == 145.541 and own.market_based_grams_per_kwh == 0


def test_platform_changes_only_plan_and_report_settings() -> None:
    here, there = run(), run(platform="lumi")
    for stage, instance in [
        ("corpus.filter", {"corpus": "main", "source": "nl_gids", "unit": "0"}),
        ("tokenizer.train", {"tokenizer": "main"}),
        ("pretrain.segment", {"model": "base", "step": "8"}),
        ("evaluate.suites", {"model": "base", "step": "8"}),
    ]:
        assert step_settings(here, stage, instance) == step_settings(there, stage, instance)
    for stage in ("plan.estimate", "report.page"):
        assert step_settings(here, stage, {}) != step_settings(there, stage, {})


def test_dumped_platform_energy_settings_parse_to_the_same_run() -> None:
    config = run(platform="lumi", energy={"pue": 1.4})
    assert config.dump_explicit_settings()["energy"] == {"pue": 1.4, "pue_source": "stated in the configuration"}
    assert parse_configuration(config.dump_explicit_settings()) == config


def test_folder_templates_are_filled_or_name_the_missing_variable() -> None:
    assert (
        platform_files.fill_folder_template("/scratch/{account}/$USER", "project_1", {"USER": "ada"})
        == "/scratch/project_1/ada"
    )
    assert platform_files.fill_folder_template("${TMPDIR}/x", None, {"TMPDIR": "/tmp"}) == "/tmp/x"
    with pytest.raises(InputError, match=r"/scratch/\{account\} needs the account: write slurm"):
        platform_files.fill_folder_template("/scratch/{account}", None, {})
    with pytest.raises(InputError, match="needs the variable SCRATCH, which is not set"):
        platform_files.fill_folder_template("$SCRATCH", None, {})
