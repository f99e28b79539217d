"""A run continues from the model of another run, with another tokenizer and a longer context, and reports it."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.opt_out.document_matching import hash_ids, union_hashes
from pipeline.opt_out.run_folder_search import ForgottenDocuments, KnownWeights, RunSearch, judge_weights
from tests.conftest import Project
from tests.rules.test_finished_training import files
from tests.rules.test_reruns import MICRO


@pytest.mark.slow
def test_training_continues_from_a_model_of_another_run(project: Project) -> None:
    earlier = project.results.parent / "earlier"
    shutil.copytree(project.results, earlier)
    config: dict[str, Any] = yaml.safe_load(project.path(MICRO).read_text())
    base = config["models"].pop("base")
    base["architecture"]["rope_scaling"] = {"factor": 2, "original_context_length": 64}
    base["training"] |= {"sequence_length": 128, "steps": 4, "milestone_every": 2, "learning_rate": 0.0003}
    folder = "results/earlier/models/base/final"
    config["models"]["longer"] = {**base, "pretrained": {"folder": folder, "license": "Apache-2.0"}}
    config["tokenizer"]["main"]["vocabulary_size"] = 620
    config["evaluation"] = {"suites": ["dutch"], "checkpoints": "final"}
    project.path(MICRO).write_text(yaml.safe_dump(config))
    project.train_alone()
    project.run()
    results = project.results
    record = json.loads((results / "provenance/records/pretrain.adopt.longer.json").read_text())
    assert not record["counts"]["same_tokenizer"] and record["counts"]["tokens_copied"] > 590
    first = json.loads((results / "provenance/records/pretrain.segment.longer.2.json").read_text())
    assert "models/longer/milestones/0/state.json" in {entry["path"] for entry in first["inputs"]}
    page = re.sub(r"<[^>]+>", "", (results / "report/index.html").read_text())
    assert f"The training of longer began with the weights of {folder} (license Apache-2.0)." in page
    assert "Adopted is the model that training began with." in page
    rows = json.loads((results / "evaluation/differences.json").read_text())["comparisons"]
    assert {(row["a"]["model"], row["a"]["step"], row["b"]["step"]) for row in rows} == {("longer", 4, 0)}
    assert len(rows) == 3 and "Each has its own tokenizer" in page, "acc of two tasks, acc_norm of one"
    crate = {entity["@id"]: entity for entity in json.loads((results / "ro-crate-metadata.json").read_text())["@graph"]}
    taken = crate[crate["models/longer/"]["isBasedOn"]["@id"]]
    assert taken["license"] == {"@id": "https://spdx.org/licenses/Apache-2.0"} and len(taken["mentions"]) >= 4

    # Whoever forgets a document of the other run is shown what continues its model, by the hash of the weights.
    ids = pq.read_table(next((earlier / "corpus/main/final").glob("*.parquet")), columns=["id"])["id"]
    wanted = ForgottenDocuments(ids=union_hashes([hash_ids(ids)]), domains={}, reserved=[])
    weights: dict[str, KnownWeights] = {}
    own = RunSearch(results.parent, results.name, wanted, own=True, proven=["main"], weights=weights)
    searches = [own, RunSearch(results.parent, "earlier", wanted, weights=weights)]
    for search in searches:
        search.search_documents()
    judge_weights(searches, weights)
    places = {place.path: place.why for place in own.search_models() if "/longer/" in place.path}
    checkpoints = ("milestones/0", "milestones/2", "milestones/4", "final")
    assert [*places] == [f"{results.name}/models/longer/{name}" for name in checkpoints]
    assert all(why.startswith("continues earlier/models/base/final: ") for why in places.values())

    # The initial weights of a long training are kept after any edit; another model is refused.
    config["run"] |= {"protected_device_hours": 0}
    project.path(MICRO).write_text(yaml.safe_dump(config))
    project.edit("pipeline/pretrain/adopt.py", "max(map(len, numbers), default=0)", "max(map(len, numbers), default=1)")
    before = files(results / "models/longer/milestones")
    assert "Nothing to be done" in project.run("pretrain")
    config["models"]["longer"]["pretrained"]["folder"] = f"{folder}/."
    project.path(MICRO).write_text(yaml.safe_dump(config))
    printed = project.run("pretrain", check=False)
    assert f"it began with {folder}, and pretrained is {folder}/. now" in printed
    assert files(results / "models/longer/milestones") == before
