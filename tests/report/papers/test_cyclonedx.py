"""The bill of materials lists models, texts, licenses and energy, with the measured completeness of other tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.core.settings import Pretrained
from pipeline.report import energy_accounting
from pipeline.report.papers.facts import format_kilowatt_hours
from tests.report.account_example import make_accounting
from tests.report.example import Run
from tests.report.papers.test_content_summary_rubric import STATED
from tests.report.papers.test_papers import written
from tests.report.test_quality import CLASSIFIER

CARD = {
    "model_license": "Apache-2.0",
    "intended_use": "research",
    "limitations": "it is small",
    "bias_measures": "none",
}
# The measure of OWASP's AIBOM generator (`field_registry.json`, 2026): for each category the share of its fields that
# are present, times its weight. A field counts if a property has its name, also after `spdx:`, or in its position here.
CATEGORIES: dict[str, tuple[int, list[str]]] = {
    "required": (20, ["bomFormat", "specVersion", "serialNumber", "version"]),
    "metadata": (20, ["primaryPurpose", "suppliedBy", "standardCompliance", "domain", "autonomyType"]),
    "component": (20, ["name", "type", "version", "purl", "description", "licenses", "external_references"]),
    "card": (
        30,
        [
            *("energyQuantity", "energyUnit", "informationAboutTraining", "informationAboutApplication", "metric"),
            *("metricDecisionThreshold", "modelDataPreprocessing", "useSensitivePersonalInformation", "intendedUse"),
            *("hyperparameter", "modelExplainability", "modelArchitecture", "datasets", "technicalLimitations"),
            *("ethicalConsiderations", "safetyRiskAssessment", "environmentalConsiderations"),
        ],
    ),
    "references": (10, ["documentation", "vcs", "website", "distribution"]),
}
IMPORTANT = ["licenses", "purl", "description", "datasets", "ethicalConsiderations", "environmentalConsiderations"]
IMPORTANT += ["hyperparameter", "technicalLimitations", "safetyRiskAssessment", "intendedUse", "modelArchitecture"]
SHAPE = 11  # card fields that count only if present


def bill(run_folder: Run, **disclosed: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((written(run_folder, **disclosed) / "cyclonedx.json").read_text())
    return content


def completeness(content: dict[str, Any]) -> float:
    component = content["components"][0]
    card = component["modelCard"]
    properties = [*content["metadata"]["properties"], *component["properties"]]
    present = {entry["name"].removeprefix("spdx:") for entry in properties if entry["value"]}
    present |= {*content, *component, *card["modelParameters"], *card["considerations"]}
    present |= {entry["type"] for entry in component["externalReferences"]}
    present |= {"distribution"} & ({"distribution"} if "website" in present else present)  # a model page suffices
    present |= {"safetyRiskAssessment"} if "ethicalConsiderations" in present else set()
    shape = len(card.get("properties", []))
    assert shape <= SHAPE
    score = 0.0
    for category, (weight, fields) in CATEGORIES.items():
        extra = shape if category == "card" else 0
        score += round(weight * (extra + sum(field in present for field in fields)) / (extra + len(fields)), 1)
    return round(score * (0.95 if sum(field not in present for field in IMPORTANT) >= 5 else 1), 1)


@pytest.fixture(name="stated")
def fill_example(run_folder: Run) -> Run:
    update = {"contact": "teksten@voorbeeld.nl", "provider_url": "https://voorbeeld.nl"}
    run_folder.settings = run_folder.settings.model_copy(update=update)
    for step in ("250", "500"):  # added by the shards of a complete run
        name = f"provenance/records/pretrain.segment.base.{step}.json"
        record = run_folder.read(name)
        record["inputs"].append({"name": "index", "path": "tokens/main/index.json", "sha256": "1" * 64, "bytes": 1})
        run_folder.write(name, record)
    read = [{"name": "documents", "path": "corpus/main/final/laws.0.parquet", "sha256": "2" * 64, "bytes": 1}]
    run_folder.record("tokens.shard", {"tokens": "main", "shard": "0"}, 4, inputs=read)
    weights = [{"name": "model", "path": "models/base/final/model.safetensors", "sha256": "3" * 64, "bytes": 1}]
    run_folder.record("pretrain.export", {"model": "base"}, 9, outputs=weights)
    return run_folder


def test_bill_with_all_statements_scores_90_of_100(stated: Run) -> None:
    content = bill(stated, **STATED, **CARD)
    assert completeness(content) == pytest.approx(91.4)  # the scores of the generator's own code for this bill:
    assert completeness(bill(stated)) == pytest.approx(70.5)


def test_bill_names_the_schema_of_its_version(stated: Run) -> None:
    content = bill(stated)
    assert content["$schema"] == f"http://cyclonedx.org/schema/bom-{content['specVersion']}.schema.json"


def test_model_component_has_texts_hashes_energy_and_license(stated: Run) -> None:
    content = bill(stated, **STATED, **CARD)
    by_reference = {component["bom-ref"]: component for component in content["components"]}
    model = by_reference["model/base"]
    assert model["type"] == "machine-learning-model" and model["licenses"] == [{"expression": "Apache-2.0"}]
    export = stated.read("provenance/records/pretrain.export.base.json")
    weights = {one["path"]: one["sha256"] for one in export["outputs"] if one["path"].endswith(".safetensors")}
    assert {file["name"]: file["hashes"][0]["content"] for file in model["components"]} == weights != {}
    (energy,) = model["modelCard"]["considerations"]["environmentalConsiderations"]["energyConsumptions"]
    properties = {entry["name"]: entry["value"] for entry in model["properties"]}
    assert energy["activity"] == "training"
    assert energy["activityEnergyCost"]["value"] == pytest.approx(float(properties["spdx:energyQuantity"]), abs=1e-8)
    accounting = stated.read("report/energy.json")
    assert 0 < energy["activityEnergyCost"]["value"] * 3.6e6 < accounting["total"]["joules"]
    metrics = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert {"type": "grammar (nl), acc", "value": "0.55"} in metrics
    assert "6ND, 2048000 tokens" in properties["spdx:informationAboutTraining"]
    assert model["modelCard"]["modelParameters"]["datasets"] == [{"ref": "corpus/main"}]
    depends = {one["ref"]: one["dependsOn"] for one in content["dependencies"]}
    assert depends == {"model/base": ["corpus/main"], "corpus/main": ["source/laws", "source/tales"]}
    assert {*depends["corpus/main"], "corpus/main"} < {*by_reference}


def properties_of(component: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in component["properties"]}


def test_model_has_the_personal_data_of_its_own_corpora(stated: Run) -> None:
    other = stated.read("corpus/main/statistics.json")
    stated.write("corpus/other/statistics.json", {**other, "corpus": "other", "personal_data": {"bsn": 99}})
    content = bill(stated)
    assert "corpus/other" in {component["bom-ref"] for component in content["components"]}
    result = properties_of(content["components"][0])
    assert result["polder:personalDataReplaced"] == "main: 12 email; main: 0 iban"
    assert result["spdx:useSensitivePersonalInformation"] == "noAssertion", "a presence, which no record states"


def test_unknown_properties_are_omitted(stated: Run) -> None:
    model = bill(stated)["components"][0]
    assert "spdx:domain" not in properties_of(model)
    parameters = model["modelCard"]["modelParameters"]
    assert parameters["modelArchitecture"] == "layers 4"
    assert not {"approach", "task", "architectureFamily"} & {*parameters}
    for step in ("250", "500"):
        name = f"provenance/records/pretrain.segment.base.{step}.json"
        record = stated.read(name)
        record["settings"]["architecture"] = {"preset": "llama3", "layers": 2, "width": 32, "heads": 4}
        stated.write(name, record)
    stated.settings = stated.settings.model_copy(update={"provider": None})
    content = bill(stated, content_types="laws")
    assert content["metadata"]["supplier"] == {"name": "the makers of tiny"}
    model = content["components"][0]
    assert model["supplier"]["name"] == "the makers of tiny"
    parameters = model["modelCard"]["modelParameters"]
    assert (parameters["architectureFamily"], parameters["modelArchitecture"]) == (
        "llama3",
        "layers 2, width 32, heads 4",
    )
    assert properties_of(model)["spdx:domain"] == "laws"


def test_energy_has_label_interval_and_significant_digits(stated: Run) -> None:
    model = bill(stated)["components"][0]
    (energy,) = model["modelCard"]["considerations"]["environmentalConsiderations"]["energyConsumptions"]
    result = properties_of(model)
    low, value, high = (
        float(result[name]) for name in ("polder:energyLow", "spdx:energyQuantity", "polder:energyHigh")
    )
    assert 0 < low < value < high and result["polder:energyLabel"] == "90 % measured, 10 % estimated"
    assert properties_of(energy) == {name: text for name, text in result.items() if name.startswith("polder:energy")}
    assert energy["activityEnergyCost"]["value"] == value
    assert format_kilowatt_hours(0.0123456 * 3.6e6) == "0.012", "two digits"
    assert format_kilowatt_hours(1.26e-7 * 3.6e6) == "0.00000013", "no exponent, which SPDX forbids"
    assert format_kilowatt_hours(1234 * 3.6e6) == "1200"


def test_unknown_energy_is_omitted(stated: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_readings(*given: Any) -> dict[str, Any]:
        accounting = make_accounting(*given)
        known = {
            "joules",
            "low_joules",
            "high_joules",
            "measured_joules",
            "estimated_joules",
            "stated_joules",
            "meters",
        }
        accounting["jobs"] = {
            name: {key: value for key, value in job.items() if key not in known}
            for name, job in accounting["jobs"].items()
        }
        accounting["total"] = {"meters": []}
        return accounting

    monkeypatch.setattr(energy_accounting, "_compute_accounting", without_readings)
    model = bill(stated)["components"][0]
    assert "considerations" not in model["modelCard"]
    assert not [entry for entry in model["properties"] if "nergy" in entry["name"]]
    papers = stated.root / "report/papers"
    graph = json.loads((papers / "spdx.json").read_text())["@graph"]
    (package,) = [element for element in graph if element["type"] == "ai_AIPackage"]
    assert "ai_energyConsumption" not in package
    text = (papers / "model-documentation-form.en.md").read_text()
    assert "base: not measured; the whole run, including lost attempts and idle nodes: not measured\n" in text
    assert "**: no meter was read\n" in text


def test_source_description_omits_unstated_properties(stated: Run) -> None:
    def describe() -> str:
        components = {component["bom-ref"]: component for component in bill(stated)["components"]}
        text: str = components["source/tales"]["data"][0].get("description", "")
        return text

    assert describe() == "language: en; legal basis: license"
    manifest = stated.read("sources/tales/manifest.json")
    del manifest["source"]["language"], manifest["source"]["rights"]
    stated.write("sources/tales/manifest.json", manifest)
    assert describe() == ""
    graph = json.loads((written(stated) / "spdx.json").read_text())["@graph"]
    (tales,) = [element for element in graph if element.get("spdxId", "").endswith(":source/tales")]
    assert "description" not in tales


def test_model_without_weights_has_no_version(stated: Run) -> None:
    assert bill(stated)["components"][0]["version"] == "3" * 16
    (stated.root / "provenance/records/pretrain.export.base.json").unlink()
    model = bill(stated)["components"][0]
    assert "version" not in model and model["purl"] == "pkg:generic/tiny/base"


def test_corpus_is_a_data_set(stated: Run) -> None:
    (corpus,) = [one for one in bill(stated)["components"] if one["bom-ref"] == "corpus/main"]
    assert (corpus["type"], corpus["data"][0]["type"]) == ("data", "dataset")


def test_source_has_license_holder_and_sizes(stated: Run) -> None:
    components = {component["bom-ref"]: component for component in bill(stated)["components"]}
    laws = components["source/laws"]
    assert laws["licenses"] == [{"expression": "CC0-1.0"}] and laws["type"] == "data"
    (data,) = laws["data"]
    assert data["contents"] == {"url": "https://wetten.overheid.nl/"}
    assert data["governance"]["owners"] == [{"organization": {"name": "Kingdom of the Netherlands"}}]
    properties = {entry["name"]: entry["value"] for entry in laws["properties"]}
    assert properties == {"polder:bytes": "3000000", "polder:documents": "1026", "polder:tokens": "0"}
    assert "contents" not in components["source/tales"]["data"][0], "javascript: is not a URL"


def test_free_text_license_is_a_name_and_several_licenses_are_joined(stated: Run) -> None:
    assert bill(stated, model_license="ask us first")["components"][0]["licenses"] == [
        {"license": {"name": "ask us first"}}
    ]
    from pipeline.report.papers.cyclonedx import _licenses

    assert _licenses(["mit OR CC0-1.0", "cc-by-4.0"]) == [{"expression": "(MIT OR CC0-1.0) AND CC-BY-4.0"}]


def test_pretrained_base_model_is_a_dependency_component(stated: Run) -> None:
    taken = Pretrained(folder="{data}/models/Large", license="Apache-2.0", url="https://example.org/large")
    stated.settings = stated.settings.model_copy(update={"pretrained": {"base": taken}})
    content = bill(stated)
    (base,) = [one for one in content["components"] if one["bom-ref"] == "pretrained/base"]
    assert base["licenses"] == [{"expression": "Apache-2.0"}]
    assert base["externalReferences"] == [{"type": "distribution", "url": "https://example.org/large"}]
    assert {"ref": "model/base", "dependsOn": ["corpus/main", "pretrained/base"]} in content["dependencies"]


def test_classifier_of_a_corpus_is_a_component_with_license_and_hashes(stated: Run) -> None:
    statistics = stated.read("corpus/main/statistics.json")
    stated.write("corpus/main/statistics.json", {**statistics, "classifiers": {"edu": CLASSIFIER}})
    content = bill(stated)
    (edu,) = [one for one in content["components"] if one["bom-ref"] == "classifier/main/edu"]
    assert edu["licenses"] == [{"expression": "Apache-2.0"}]
    assert edu["externalReferences"] == [{"type": "distribution", "url": "https://example.org/edu"}]
    assert [file["hashes"][0]["content"] for file in edu["components"]] == ["ab" * 32, "cd" * 32]
    (corpus,) = [one for one in content["dependencies"] if one["ref"] == "corpus/main"]
    assert "classifier/main/edu" in corpus["dependsOn"]
    graph = json.loads((written(stated) / "spdx.json").read_text())["@graph"]
    (package,) = [one for one in graph if one.get("spdxId", "").endswith(":classifier/main/edu")]
    assert package["verifiedUsing"][0]["hashValue"] == "ab" * 32
    (uses,) = [one for one in graph if one.get("relationshipType") == "usesTool"]
    assert uses["from"].endswith(":corpus/main") and uses["to"] == [package["spdxId"]]
    licensed = [one for one in graph if one.get("from") == package["spdxId"]]
    assert [one["relationshipType"] for one in licensed] == ["hasDeclaredLicense"]


def test_same_run_gives_the_same_bill_and_other_weights_another_serial_number(stated: Run) -> None:
    first = bill(stated)
    assert bill(stated) == first
    record = stated.read("provenance/records/pretrain.export.base.json")
    for entry in record["outputs"]:
        entry["sha256"] = "f" * 64
    stated.write("provenance/records/pretrain.export.base.json", record)
    second = bill(stated)["serialNumber"]
    assert second != first["serialNumber"] != bill(stated, limitations="it is small")["serialNumber"] != second
