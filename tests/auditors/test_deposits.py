"""What a packed run gives to upload: WorkflowHub's ZIP by rocrate-validator and its reader's rules, Zenodo's record."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from pipeline import layout
from pipeline.provenance.pack import pack
from tests.conftest import ROOT
from tests.provenance.conftest import build

Run = Callable[..., "CompletedProcess[str]"]
Findings = Callable[[Path, str], list[tuple[str, str]]]
PAGE = ROOT / "docs/howto/archive-a-run.md"
PROVIDER = {"provider": "Institute", "provider_url": "https://example.org/"}
# Of the profiles, one requires a web address of every workflow, and another one that the main one is a file.
WEB_ADDRESS = "process-run-crate-0.5_5.1"
NOT_INSIDE = "ro-crate-1.1_12.1"

# A record of InvenioRDM, which Zenodo runs: the required fields and their values by `MetadataSchema` and its parts in
# inveniosoftware/invenio-rdm-records at 1f23bb9e, services/schemas/metadata.py, and the types of records in
# fixtures/data/vocabularies/resource_types.yaml there, without its subtypes.
REQUIRED = {"resource_type", "creators", "title", "publication_date"}
FIELDS = REQUIRED | {"description", "publisher", "rights"}
TYPES = {
    *("publication", "poster", "presentation", "event", "dataset", "image", "model", "video", "audio", "software"),
    *("lesson", "other", "physicalobject", "workflow", "project", "instrument"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, packed whole and without its larger files, each as the ZIP that the page describes."""
    folder = tmp_path_factory.mktemp("deposit")
    run = build(folder / "run")
    run.crate(license="CC-BY-4.0", **PROVIDER)
    (line,) = re.findall(r"^cd FOLDER/data && python3 (-m zipfile .*) \*$", PAGE.read_text(encoding="utf-8"), re.M)
    for name, limit in (("whole", 10**8), ("small", 2_000)):
        pack(run.folder, folder / name, limit)
        words = line.replace("run.zip", f"{name}.zip").split()
        inside = sorted(path.name for path in (folder / name / "data").iterdir())
        subprocess.run([sys.executable, *words, *inside], cwd=folder / name / "data", check=True)
    return folder


@pytest.fixture(scope="module")
def findings(auditor: Run, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    cache = tmp_path_factory.mktemp("cache") / "cache"
    filled = auditor("python", Path(__file__).with_name("fill_cache.py"), cache)
    assert filled.returncode == 0, filled.stderr

    def validate(crate: Path, profile: str) -> list[tuple[str, str]]:
        done = auditor("python", Path(__file__).with_name("validate_zip.py"), crate, profile, cache)
        assert done.returncode == 0, done.stderr
        return [(check, message) for check, message in json.loads(done.stdout.splitlines()[-1])]

    return validate


def read_crate(crate: zipfile.ZipFile) -> dict[str, dict[str, Any]]:
    return {entity["@id"]: entity for entity in json.loads(crate.read(layout.CRATE))["@graph"]}


def find_absent_files(path: Path) -> list[str]:
    """Return the parts of a crate that its ZIP lacks: WorkflowHub refuses the crate for the first one.

    As its reader looks for them: ResearchObject/ro-crate-ruby at d1ab019c, lib/ro_crate/reader.rb, which
    seek4science/seek at 45b83bfd reads uploads with.
    """
    with zipfile.ZipFile(path) as crate:
        names = crate.namelist()
        local = [part["@id"] for part in read_crate(crate)["./"]["hasPart"] if not urlsplit(part["@id"]).scheme]
    folders = {f"{'/'.join(name.split('/')[:depth])}/" for name in names for depth in range(1, name.count("/") + 1)}
    inside = {*names, *folders}
    return [unquote(part) for part in local if not part.startswith("#") and unquote(part) not in inside]


@pytest.mark.slow
def test_workflowhub_zip_conforms_to_its_profile_and_has_every_file(folder: Path, findings: Findings) -> None:
    assert findings(folder / "whole.zip", "workflow-ro-crate-1.0") == []
    runs = findings(folder / "whole.zip", "provenance-run-crate-0.5")
    assert {check for check, _ in runs} == {WEB_ADDRESS}
    assert find_absent_files(folder / "whole.zip") == []
    with zipfile.ZipFile(folder / "whole.zip") as crate:
        entities = read_crate(crate)
        workflow = entities[entities["./"]["mainEntity"]["@id"]]
        assert {"File", "SoftwareSourceCode", "ComputationalWorkflow"} <= {*workflow["@type"]}
        assert crate.read(workflow["@id"]) and workflow["name"]
        assert entities[workflow["programmingLanguage"]["@id"]]["name"] == "Snakemake"
        assert entities["./"]["license"] and entities["./"]["author"]


@pytest.mark.slow
def test_zip_of_a_bag_that_left_files_out_is_no_crate_for_workflowhub(folder: Path, findings: Findings) -> None:
    absent = find_absent_files(folder / "small.zip")
    lines = (folder / "small/large-files.tsv").read_text().splitlines()[1:]
    left_out = {line.split("\t")[0] for line in lines} - {layout.CRATE_RECORD}  # which no crate lists
    assert sorted(absent) == sorted(left_out) and len(absent) > 3
    found = findings(folder / "small.zip", "workflow-ro-crate-1.0")
    assert {check for check, _ in found} == {NOT_INSIDE}
    assert sorted(message.split("'")[1] for _, message in found) == sorted(absent)


@pytest.mark.slow
def test_validator_reports_what_workflowhub_needs(folder: Path, tmp_path: Path, findings: Findings) -> None:
    """Without language, license and name of the main workflow."""
    with zipfile.ZipFile(folder / "whole.zip") as crate, zipfile.ZipFile(tmp_path / "run.zip", "w") as changed:
        for name in crate.namelist():
            if name != layout.CRATE:
                changed.writestr(name, crate.read(name))
        entities = read_crate(crate)
        del entities[entities["./"]["mainEntity"]["@id"]]["programmingLanguage"], entities["./"]["license"]
        whole = json.loads(crate.read(layout.CRATE))
        changed.writestr(layout.CRATE, json.dumps({**whole, "@graph": [*entities.values()]}))
    assert len(findings(tmp_path / "run.zip", "workflow-ro-crate-1.0")) >= 2


def find_record_problems(metadata: dict[str, Any]) -> list[str]:
    """Return what InvenioRDM would refuse of the metadata of a record."""
    problems = [f"{name} is missing" for name in REQUIRED - metadata.keys()]
    problems += [f"{name} is no field" for name in metadata.keys() - FIELDS]
    problems += [] if metadata.get("resource_type", {}).get("id") in TYPES else ["the type is unknown"]
    problems += [f"{name} is too short" for name in ("title", "description") if len(metadata.get(name, "xxx")) < 3]
    for creator in metadata.get("creators") or [{"person_or_org": {}}]:
        who = creator["person_or_org"]
        needed = {"personal": "family_name", "organizational": "name"}.get(who.get("type", ""))
        problems += [] if needed and who.get(needed) else ["a creator has no type or name"]
    for right in metadata.get("rights", []):
        problems += [] if ("id" in right) != bool(right.get("title")) else ["rights need an id or a title"]
        link = urlsplit(right.get("link", "https://example.org"))
        problems += [] if link.scheme in ("http", "https") and link.netloc else ["a link is no address"]
    try:
        date.fromisoformat(metadata.get("publication_date", ""))
    except ValueError:
        problems.append("the date is none")
    return problems


@pytest.mark.parametrize("license", ["CC-BY-4.0", "each text as its source says"])
def test_record_for_zenodo_has_its_required_fields_and_values(
    folder: Path, tmp_path: Path, auditor: Run, license: str
) -> None:
    run = build(tmp_path / "run")
    run.crate(license=license, **PROVIDER)
    pack(run.folder, tmp_path / "bag")
    done = auditor("rocrate_inveniordm", "--no-upload", tmp_path / "bag/data", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "datacite-out.json").read_text())
    metadata = record["metadata"]
    assert find_record_problems(metadata) == [] and metadata["resource_type"] == {"id": "workflow"}
    assert [creator["person_or_org"]["name"] for creator in metadata["creators"]] == ["Institute"]
    (rights,) = metadata["rights"]
    assert rights["title"]["en"].startswith(license) and ("link" in rights) == (" " not in license), "no address"
    assert record["access"] == {"record": "public", "files": "public", "embargo": {"active": False}}
    assert record["files"] == {"enabled": True}
    for change in ({"resource_type": {"id": "crate"}}, {"creators": []}, {"title": "x"}, {"publication_date": "soon"}):
        assert len(find_record_problems({**metadata, **change})) == 1
