"""Files that a job opens before its step begins, in a run with the records of thousands of units."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.core.errors import InputError
from pipeline.job import job_entry_point as job
from pipeline.job import versions
from tests.job.test_job_entry_point import UNITS, Batch

UNITS_OF_THE_RUN = 2000
STEPS = ("sources.fingerprint", "corpus.filter.main", "corpus.signatures.main", "corpus.deduplicate.main")
MODULE = "pipeline.sources.manifest"
# Run one job and print the files that Python opens and the folders that it lists until the job ends.
COUNTED = """
import json, sys
seen, events = [], ("open", "os.listdir", "os.scandir")
sys.addaudithook(lambda event, given: seen.append(str(given[0])) if event in events else None)
from pipeline.job import job_entry_point as job
assert job.main(json.loads(sys.argv[1])) == 0
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """Return a source of three hashed units, in a run with two thousand units of other sources."""
    made = Batch(tmp_path_factory.mktemp("start"))
    made.start()
    content = json.dumps(made.read_record("0"))
    for step in STEPS:
        paths = [made.run / f"provenance/records/{step}.news.{unit}.json" for unit in range(UNITS_OF_THE_RUN)]
        for path in paths:
            path.write_text(content)
        FileStore(made.run).archive(f"{step}.news.0", paths)
    # Records of the same units by other steps, and an unfinished one.
    for unit in UNITS:
        (made.run / f"provenance/records/corpus.filter.main.laws.{unit}.json").write_text(content)
    (made.run / "provenance/records/.partial-sources.manifest.laws.json").write_text("{")
    return made


def joining(batch: Batch) -> list[str]:
    """Return the command of the manifest of the source."""
    settings = {"source": "laws", "language": "nl", "license": "CC0-1.0", "units": 3}
    settings |= {"rights": {"basis": "public-domain", "holder": "nobody"}}  # type: ignore[dict-item]
    options = ["sources", "manifest", "--settings", json.dumps(settings), "--instance", "source=laws"]
    options += ["--code", versions.code_version(MODULE)]
    options += ["--environment", versions.environment_version(MODULE, "cpu")]
    options += ["--input", "fingerprints", f"{batch.source}/fingerprints/{{0..2}}.json"]
    options += ["--output", "manifest", f"{batch.source}/manifest.json", "--output", "units", f"{batch.source}/units"]
    return [*options, "--record", str(batch.run / "provenance/records/sources.manifest.laws.json")]


def opened(batch: Batch) -> list[Path]:
    done = subprocess.run([sys.executable, "-c", COUNTED, json.dumps(joining(batch))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Path(path) for path in json.loads(done.stdout)]


def test_job_opens_only_the_records_of_its_inputs(batch: Batch) -> None:
    paths = [path.name for path in opened(batch) if path.parent.name in ("records", "archives")]
    assert [name for name in paths if name.endswith(".json") and "sources.manifest.laws" not in name] == []
    times = Counter(name.split(".", 2)[2].removesuffix(".zip") for name in paths if name.endswith(".zip"))
    # Each archive is listed once, and that of the inputs' records is opened for each of them.
    assert times == {**{f"{step}.news.0": 1 for step in STEPS}, "sources.fingerprint.laws.0": 1 + len(UNITS)}


def test_job_lists_records_once_and_reads_only_metadata_of_imported_packages(batch: Batch) -> None:
    paths = opened(batch)
    packages = versions.environment(MODULE, "cpu").packages
    metadata = [path for path in paths if path.parent.suffix == ".dist-info"]
    assert {path.name for path in metadata} == {"METADATA", "RECORD"} and len(metadata) <= 2 * len(packages)
    assert paths.count(batch.run / "provenance/records") == 1


@pytest.fixture
def altered(batch: Batch) -> Iterator[Path]:
    path = batch.source / "fingerprints/1.json"
    content = path.read_bytes()
    yield path
    path.write_bytes(content)


def test_altered_input_is_detected_by_its_record(batch: Batch, altered: Path) -> None:
    altered.write_bytes(altered.read_bytes().replace(b"unit", b"UNIT"))
    with pytest.raises(InputError, match=r"fingerprints/1\.json has other bytes than its record says"):
        job.main(joining(batch))


def test_input_without_a_record_is_accepted(batch: Batch, altered: Path) -> None:
    archives = {path: path.read_bytes() for path in layout.BATCH_ARCHIVE.glob(batch.run)}
    batch.forget_record("1")
    try:
        assert job.main(joining(batch)) == 0
    finally:
        for path, content in archives.items():
            path.write_bytes(content)
    record = json.loads((batch.run / "provenance/records/sources.manifest.laws.json").read_text())
    assert [entry["path"] for entry in record["inputs"]] == [f"sources/laws/fingerprints/{unit}.json" for unit in UNITS]


def test_steps_that_only_read_and_count_load_no_large_library() -> None:
    """Each would take a job a third of a second or more."""
    steps = ["sources.fingerprint", "sources.manifest", "corpus.statistics", "tokens.index", "pretrain.segment"]
    steps += ["evaluate.suites", "evaluate.differences", "report.page", "provenance.crate"]
    large = ["torch", "numba", "datatrove", "transformers", "lm_eval", "pandas", "scipy.stats", "scipy.optimize"]
    words = "import importlib, sys; [importlib.import_module(f'pipeline.{name}') for name in sys.argv[1].split()]; "
    words += "print([name for name in sys.argv[2].split() if name in sys.modules])"
    given = [sys.executable, "-c", words, " ".join(steps), " ".join(large)]
    assert subprocess.run(given, capture_output=True, text=True, check=True).stdout == "[]\n"
