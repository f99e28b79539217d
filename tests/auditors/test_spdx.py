"""The SPDX document is valid in SPDX's own model, and states which data trained which model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.auditors.conftest import Run
from tests.conftest import Project

READER = Path(__file__).parent / "read_spdx.py"


@pytest.fixture
def document(finished: Project) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((finished.results / "report/papers/spdx.json").read_text(encoding="utf-8"))
    return content


def only(document: dict[str, Any], kind: str) -> dict[str, Any]:
    result: dict[str, Any]
    (result,) = [element for element in document["@graph"] if element["type"] == kind]
    return result


@pytest.mark.slow
def test_spdx_model_reads_the_document_of_a_run(finished: Project, auditor: Run) -> None:
    done = auditor("python", READER, finished.results / "report/papers/spdx.json")
    assert done.returncode == 0, done.stderr
    assert "ai_AIPackage 1\n" in done.stdout and "dataset_DatasetPackage 4\n" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda package: package.update(software_primaryPurpose="language"),
        lambda package: package.update(ai_something="x"),
        lambda package: package["verifiedUsing"][0].update(algorithm="sha0"),
        lambda package: package.update(suppliedBy="urn:polder:nobody"),
    ],
    ids=["value", "property", "algorithm", "reference"],
)
def test_invalid_document_is_rejected(
    document: dict[str, Any], tmp_path: Path, auditor: Run, change: Callable[[dict[str, Any]], None]
) -> None:
    change(only(document, "ai_AIPackage"))
    (tmp_path / "spdx.json").write_text(json.dumps(document))
    assert auditor("python", READER, tmp_path / "spdx.json").returncode != 0


@pytest.mark.slow
def test_spdx_document_lists_corpora_weights_and_energy(finished: Project, document: dict[str, Any]) -> None:
    package = only(document, "ai_AIPackage")
    export = json.loads((finished.results / "provenance/records/pretrain.export.base.json").read_text())
    weights = [entry["sha256"] for entry in export["outputs"] if entry["path"].endswith(".safetensors")]
    assert [entry["hashValue"] for entry in package["verifiedUsing"]] == weights != []
    trained = [e for e in document["@graph"] if e.get("relationshipType") == "trainedOn"]
    assert [(entry["from"], entry["to"]) for entry in trained] == [
        (package["spdxId"], ["urn:polder:micro:corpus/main"])
    ]
    (licensed,) = [e for e in document["@graph"] if e["type"] == "simplelicensing_LicenseExpression"]
    assert licensed["simplelicensing_licenseExpression"] == "CC0-1.0"
    (described,) = package["ai_energyConsumption"]["ai_trainingEnergyConsumption"]
    energy = json.loads((finished.results / "report/energy.json").read_text())
    assert 0 < float(described["ai_energyQuantity"]) * 3.6e6 < energy["total"]["joules"]
