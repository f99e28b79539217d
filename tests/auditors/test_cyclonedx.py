"""The bill of materials is valid under the schema of CycloneDX 1.7, according to cyclonedx-python-lib."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.auditors.conftest import Run
from tests.report.conftest import run_folder  # noqa: F401
from tests.report.papers.test_content_summary_rubric import STATED
from tests.report.papers.test_cyclonedx import CARD, bill, fill_example  # noqa: F401

VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_7).validate_str(open(sys.argv[1], encoding="utf-8").read())
sys.exit(str(error)[:500] if error else 0)
"""


@pytest.mark.parametrize("disclosed", [{}, {**STATED, **CARD}], ids=["nothing stated", "everything stated"])
def test_cyclonedx_library_accepts_the_bill(
    stated: Any,
    tmp_path: Path,
    auditor: Run,
    disclosed: dict[str, Any],
) -> None:
    (tmp_path / "bom.json").write_text(json.dumps(bill(stated, **disclosed)))
    done = auditor("python", "-c", VALIDATE, tmp_path / "bom.json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.update(type="language-model"),
        lambda model: model["modelCard"].update(energy=1),
        lambda model: model["components"][0]["hashes"][0].update(content="not a hash"),
    ],
    ids=["type", "property", "hash"],
)
def test_invalid_document_is_rejected(
    stated: Any,
    tmp_path: Path,
    auditor: Run,
    change: Callable[[dict[str, Any]], None],
) -> None:
    content = bill(stated)
    change(content["components"][0])
    (tmp_path / "bom.json").write_text(json.dumps(content))
    assert auditor("python", "-c", VALIDATE, tmp_path / "bom.json").returncode != 0


@pytest.mark.slow
def test_cyclonedx_library_accepts_the_bill_of_a_run(finished: Any, auditor: Run) -> None:
    path = finished.results / "report/papers/cyclonedx.json"
    done = auditor("python", "-c", VALIDATE, path)
    assert done.returncode == 0, done.stderr
    (model,) = [one for one in json.loads(path.read_text())["components"] if one["bom-ref"].startswith("model/")]
    assert model["modelCard"]["considerations"]["environmentalConsiderations"]
