"""The crate lists every file and job, is reproducible, and is read by the reference library."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rocrate.rocrate import ROCrate

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.provenance.crate import run as write_crate
from pipeline.provenance.crate_graph import detect_media_type
from pipeline.provenance.inventory import CRATE_VOUCHER, find_file_kind, list_artifacts
from pipeline.provenance.settings import CrateSettings
from tests.provenance.conftest import describe


def entities(folder: Path) -> dict[str, dict[str, Any]]:
    return {entity["@id"]: entity for entity in json.loads((folder / layout.CRATE).read_text())["@graph"]}


def test_every_file_is_listed_with_hash_and_size(finished: Path) -> None:
    listed = {key: entity for key, entity in entities(finished).items() if "File" in entity["@type"]}
    assert sorted(listed) == list_artifacts(finished)
    assert "provenance/records/corpus.filter.main.laws.0.json" in listed
    for path, entity in listed.items():
        assert entity["sha256"] == hash_file(finished / path)
        assert int(entity["contentSize"]) == (finished / path).stat().st_size


def test_attempts_logs_scratch_and_unfinished_files_are_excluded(finished: Path) -> None:
    for extra in (".partial-x.json", "models/.partial-final/model.safetensors", "models/.snakemake_timestamp"):
        (finished / extra).parent.mkdir(parents=True, exist_ok=True)
        (finished / extra).write_text("x")
    assert not [path for path in list_artifacts(finished) if "partial" in path or "timestamp" in path]
    assert not [
        path for path in list_artifacts(finished) if path.split("/")[0] in ("logs", "scratch") or "attempts" in path
    ]


def test_prov_of_an_earlier_version_is_verified_until_the_crate_is_made_again(finished: Path) -> None:
    (finished / layout.FORMER_PROV).write_text("{}")
    kind = find_file_kind(layout.FORMER_PROV)
    assert kind is not None and kind.voucher == CRATE_VOUCHER
    describe(finished, [])
    assert not (finished / layout.FORMER_PROV).exists()
    assert layout.FORMER_PROV not in (finished / layout.CRATE).read_text()


def test_source_named_scratch_is_included(finished: Path) -> None:
    (finished / "sources/scratch").mkdir()
    (finished / "sources/scratch/manifest.json").write_text("{}")
    assert "sources/scratch/manifest.json" in list_artifacts(finished)


def test_jobs_have_inputs_outputs_software_times_and_cost(finished: Path) -> None:
    graph = entities(finished)
    job = graph["#job/corpus.filter.main.laws.0"]
    assert job["@type"] == "CreateAction"
    assert {"@id": "corpus/main/filtered/laws.0.parquet"} in job["result"]
    assert job["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert {"@id": "sources/laws/manifest.json"} in job["object"]
    assert job["startTime"] < job["endTime"]
    assert graph[job["agent"]["@id"]]["name"] == "not stated"
    assert job["agent"]["@id"].startswith("#"), "an entity of this crate, and not a file"
    assert graph[job["instrument"]["@id"]]["@type"] == "SoftwareApplication"
    usage = [graph[reference["@id"]] for reference in job["resourceUsage"]]
    energy = next(value for value in usage if value["name"] == "energy")
    assert (energy["value"], energy["unitText"], energy["unitCode"]) == (100.5, "joule", "JOU")
    assert (energy["minValue"], energy["maxValue"]) == (90.5, 110.5)
    assert "80 % measured, 20 % estimated" in energy["description"] and "rapl" in energy["description"]


def test_run_energy_equals_the_report(finished: Path) -> None:
    graph = entities(finished)
    (energy,) = (graph[value["@id"]] for value in graph["./"]["variableMeasured"] if "total" in value["@id"])
    reported = json.loads((finished / "report/energy.json").read_text())["total"]
    assert energy["value"] == reported["joules"] > 900


def test_sources_have_license_and_rights(finished: Path) -> None:
    graph = entities(finished)
    laws = graph["sources/laws/"]
    assert laws["license"] == {"@id": "https://spdx.org/licenses/CC0-1.0"}
    assert graph["https://spdx.org/licenses/CC0-1.0"]["name"] == "CC0-1.0"
    assert "public-domain" in laws["usageInfo"]
    raw = graph[laws["mentions"]["@id"]]
    assert raw["name"] == "laws/0.jsonl"


def test_parameter_is_a_file_a_collection_or_both_by_where_its_values_are(build_run: Callable[..., Any]) -> None:
    run, path = build_run("run"), "corpus/main/statistics.json"
    run.written[path]["name"] = "files"
    outside = {"items.jsonl": b"items"}  # of the same name in the record
    run.job("corpus.ngrams", {"corpus": "main"}, [path], {"corpus/main/ngrams.parquet": b"x"}, raw=outside)
    run.crate()
    by_name = entities(run.folder)
    kinds = {
        "corpus.filter/input/files": "Collection",
        "corpus.filter/input/output": "File",
        "corpus.ngrams/input/files": ["File", "Collection"],
    }
    assert {name: by_name[f"#parameter/{name}"]["additionalType"] for name in kinds} == kinds


def test_every_reference_resolves_in_the_crate(finished: Path) -> None:
    graph = entities(finished)

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [value["@id"]] if set(value) == {"@id"} else [r for v in value.values() for r in references(v)]
        return [r for item in value for r in references(item)] if isinstance(value, list) else []

    results = {reference for entity in graph.values() for reference in references(entity)}
    elsewhere = {reference for reference in results - graph.keys() if "bioschemas.org/profiles" not in reference}
    assert elsewhere == {"https://w3id.org/ro/crate/1.1"}


def test_reference_library_reads_the_crate(finished: Path) -> None:
    crate = ROCrate(finished)
    assert crate.root_dataset["name"] == "test"
    actions = [entity for entity in crate.root_dataset["mentions"] if entity.type == "CreateAction"]
    assert len([e for e in crate.get_entities() if e.type == "CreateAction"]) == len(actions) == 11
    assert crate.mainEntity.id == "provenance/workflow/Snakefile"
    files = {entity.id for entity in crate.data_entities if "File" in entity.type}
    assert files == set(list_artifacts(finished))


def test_each_file_of_the_workflow_is_plain_text(finished: Path) -> None:
    entities = json.loads((finished / layout.CRATE).read_text())["@graph"]
    workflow = {e["@id"]: e for e in entities if e["@id"].startswith(f"{layout.WORKFLOW_FILES}/")}
    assert len(workflow) > 1 and {e["encodingFormat"] for e in workflow.values()} == {"text/plain"}


def test_same_results_give_the_same_bytes(
    template: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(template[0], tmp_path / "elsewhere")
    records = sorted([*layout.RECORD.glob(copy), *layout.UNIT_RECORDS.glob(copy)], reverse=True)
    crate = copy / ".partial-ro-crate-metadata.json"
    (state,) = (e for e in json.loads((copy / layout.CRATE).read_text())["@graph"] if e["@id"] == "#log-checkpoint")
    lines = (copy / layout.ATTESTATION_LOG).read_bytes().splitlines(keepends=True)[: state["position"]]
    (copy / layout.ATTESTATION_LOG).write_bytes(b"".join(lines))  # as the log did
    assert state["sha256"] == hashlib.sha256(lines[-1].rstrip(b"\n")).hexdigest()
    describe(copy, records, crate)
    text = (template[0] / layout.CRATE).read_text(encoding="utf-8")
    assert crate.read_text(encoding="utf-8") == text
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n", "a line for each value"
    assert f"crate sha256: {template[1]}\n" in capsys.readouterr().out


def test_record_of_an_earlier_configuration_is_a_file_and_not_a_job(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    planned = sorted([*layout.RECORD.glob(run.folder), *layout.UNIT_RECORDS.glob(run.folder)])
    run.job("tokens.shard", {"tokens": "main", "shard": "7"}, [], {"tokens/main/train/7.arrow": b"old"})
    describe(run.folder, planned)
    graph = entities(run.folder)
    assert "#job/tokens.shard.main.7" not in graph
    assert "not made by a job" in graph["tokens/main/train/7.arrow"]["description"]
    assert "description" not in graph["tokens/main/train/0.arrow"]
    listed = [path for path in graph if path.startswith(f"{layout.BATCH_ARCHIVES}/")]
    assert len(listed) == 2 and not any("description" in graph[path] for path in listed)


def test_file_with_an_unrecorded_length_stops_the_crate(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    (run.folder / "tokens/main/train/0.arrow").write_bytes(b"short")
    with pytest.raises(InputError, match=r"tokens/main/train/0\.arrow has 5 bytes"):
        run.crate()


def test_crate_needs_its_workflow_a_record_and_every_recorded_file(finished: Path, tmp_path: Path) -> None:
    inputs: dict[str, Any] = {"settings": CrateSettings(run="test"), "files": []}
    places = {"readme": finished / layout.RUN_README, "kept": finished / layout.WORKFLOW_FILES}
    with pytest.raises(InputError, match="the crate needs the workflow: give the Snakefile"):
        write_crate(**inputs, workflow=[tmp_path / "rules.smk"], crate=finished / layout.CRATE, **places)
    with pytest.raises(InputError, match="provenance/records holds no record of a finished step: run the steps"):
        describe(finished, [finished / layout.RECORDS / "other.json"])
    (finished / "tokens/main/train/0.arrow").unlink()
    with pytest.raises(InputError, match=r"train/0\.arrow is missing: start again, which runs tokens\.shard again"):
        describe(finished, [])


def test_run_without_energy_or_known_packages_has_no_entities_of_them(build_run: Callable[..., Any]) -> None:
    packages = {"no-such-package": "1.0", "pyarrow": "1 ; sys_platform == 'linux'"}
    changes = {"environment_file": None, "environment": {"python": "3.11", "packages": packages}}
    run = build_run("run", **changes).folder
    (run / layout.ENERGY_ACCOUNT).unlink()
    (run / layout.RECORDS / "report.page.json").unlink()
    describe(run, [])
    graph = entities(run)
    assert not [identifier for identifier in graph if "energy" in identifier]
    assert "variableMeasured" not in graph["./"] and "resourceUsage" not in graph["#run"]
    tool = graph[graph["#job/pretrain.segment.base.10"]["instrument"]["@id"]]
    assert tool["description"].endswith(": no-such-package 1.0, pyarrow 1 ; sys_platform == 'linux'")
    assert "softwareRequirements" not in tool


def test_source_without_a_manifest_and_license_of_each_document(finished: Path) -> None:
    (finished / "sources/raw").mkdir()
    (finished / "sources/raw/notes.txt").write_text("x")
    manifest = finished / "sources/laws/manifest.json"
    content = json.loads(manifest.read_text())
    rights = {"basis": "license", "holder": None, "terms": ["a", {"b": 1}]}
    content["source"] |= {"license_key": "terms", "rights": rights, "license": None}
    manifest.write_text(json.dumps(content))
    record = finished / layout.RECORDS / "sources.manifest.laws.json"
    recorded = json.loads(record.read_text())
    recorded["outputs"][0] |= {"bytes": manifest.stat().st_size}
    record.write_text(json.dumps(recorded))
    describe(finished, [])
    graph = entities(finished)
    assert graph["sources/raw/"] == {
        "@id": "sources/raw/",
        "@type": "Dataset",
        "name": "source raw",
        "hasPart": {"@id": "sources/raw/notes.txt"},
    }
    said = "basis: license; terms: a, b: 1; license of a document: what it says itself, in terms"
    assert graph["sources/laws/"]["usageInfo"] == said and "license" not in graph["sources/laws/"]
    manifest.write_text("[]".ljust(manifest.stat().st_size))
    with pytest.raises(InputError, match=r"sources/laws/manifest\.json holds no description of a source: make it"):
        describe(finished, [])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("x.svg", "image/svg+xml"), ("x.csv", "text/csv"), ("x.txt", "text/plain"), ("x.log", "text/plain")),
        *(("x.yaml", "application/yaml"), ("x.gz", "application/gzip"), ("x.zst", "application/zstd")),
        ("x.bin", "application/octet-stream"),
    ],
)
def test_media_type_is_that_of_the_name(name: str, kind: str) -> None:
    assert detect_media_type(Path(name)) == kind


def test_arrow_file_and_stream_formats_are_distinguished(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    table, folder = pa.table({"n": [1]}), run.folder / "tokens/main/train"
    for number, new in ((7, pa.ipc.new_file), (8, pa.ipc.new_stream)):
        with new(folder / f"{number}.arrow", table.schema) as writer:
            writer.write_table(table)
    describe(run.folder, [])
    kinds = {number: entities(run.folder)[f"tokens/main/train/{number}.arrow"]["encodingFormat"] for number in (7, 8)}
    assert kinds == {7: "application/vnd.apache.arrow.file", 8: "application/vnd.apache.arrow.stream"}


@pytest.mark.parametrize(
    ("license", "identifier"),
    [
        ("MIT", "https://spdx.org/licenses/MIT"),
        ("GPL-3.0-only", "https://spdx.org/licenses/GPL-3.0-only"),
        ("https://example.org/terms", "https://example.org/terms"),
        ("LicenseRef-contract", "#license/LicenseRef-contract"),
        ("by agreement", "#license/by%20agreement"),
    ],
)
def test_licenses_have_spdx_identifiers_where_available(finished: Path, license: str, identifier: str) -> None:
    describe(finished, [], license=license)
    graph = entities(finished)
    assert graph["./"]["license"] == {"@id": identifier}
    address = identifier if "://" in identifier else None
    assert (graph[identifier]["name"], graph[identifier].get("identifier")) == (license, address)
    assert graph[identifier]["name"] == license


def test_pretrained_base_model_is_included_with_its_license(finished: Path) -> None:
    folder = finished
    model = next(iter((folder / "models").iterdir())).name
    (record,) = folder.glob(f"{layout.RECORDS}/pretrain.export.{model}.json")
    content = json.loads(record.read_text())
    raw = {"name": "model", "path": "data:large/config.json", "sha256": "ab" * 32, "bytes": 7}
    adopted = {**content, "step": "pretrain.adopt", "inputs": [raw], "outputs": []}
    path = folder / f"{layout.RECORDS}/pretrain.adopt.{model}.json"
    path.write_text(json.dumps(adopted))
    taken = {"folder": "{data}/large", "license": "Apache-2.0", "url": "https://example.org/large"}
    describe(folder, [folder / name for name in list_artifacts(folder)], pretrained={model: taken})
    graph = entities(folder)
    base = graph[graph[f"models/{model}/"]["isBasedOn"]["@id"]]
    assert base["license"] == {"@id": "https://spdx.org/licenses/Apache-2.0"}
    assert (base["name"], base["url"]) == ("large", "https://example.org/large")
    assert graph[base["mentions"]["@id"]]["sha256"] == "ab" * 32


def test_classifier_is_included_with_its_license_and_is_no_file_of_a_source(finished: Path) -> None:
    (filtered, *_) = sorted(finished.glob(f"{layout.RECORDS}/corpus.filter.*.json"))
    content = json.loads(filtered.read_text())
    raw = {"name": "classifier", "path": "data:hq.bin", "sha256": "ab" * 32, "bytes": 7}
    instance = {**content["instance"], "classifier": "hq"}
    scored = {**content, "step": "corpus.classify", "instance": instance, "inputs": [raw], "outputs": []}
    filtered.with_name(filtered.name.replace("filter", "classify.hq")).write_text(json.dumps(scored))
    key, taken = f"{instance['corpus']}/hq", {"folder": "{data}/hq.bin", "name": "hq.bin", "license": "CC-BY-4.0"}
    describe(finished, [finished / name for name in list_artifacts(finished)], classifiers={key: taken})
    graph = entities(finished)
    model = graph[f"#classifier/{key}"]
    assert model["license"] == {"@id": "https://spdx.org/licenses/CC-BY-4.0"}
    file = graph[model["hasPart"]["@id"]]
    assert [file["sha256"], file["isPartOf"]] == ["ab" * 32, {"@id": f"#classifier/{key}"}]
    mentioned = graph[f"sources/{instance['source']}/"].get("mentions", [])
    assert {"@id": file["@id"]} not in (mentioned if isinstance(mentioned, list) else [mentioned])
