"""A run makes interleaved documents of archives, and runs again only what an edit concerns."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import yaml

from tests.conftest import Project, new_project
from tests.interleaved.conftest import OTHERS, Resource, archive, page, picture

CARD = "results/micro/interleaved/pages/README.md"
SITE = "https://voorbeeld.nl"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = new_project(tmp_path_factory.mktemp("interleaved") / "polder")
    made.keep_sources("nl_gids")
    resources = [
        Resource(f"{SITE}/1", page(*OTHERS[:3], '<img src="/a.jpg"><img src="/logo.png">')),
        Resource(f"{SITE}/2", page(*OTHERS[3:6], '<img src="/b.jpg"><img src="//beeld.nl/c.jpg">')),
        Resource(f"{SITE}/a.jpg", picture("red"), "image/jpeg"),
    ]
    made.path("web").mkdir()
    made.path("web/a.warc.gz").write_bytes(archive(*resources))
    path = made.path("config/micro.yaml")
    config = yaml.safe_load(path.read_text())
    rights = {"basis": "license", "holder": "someone"}
    config["sources"].append(
        {"name": "web", "path": "web/*.warc.gz", "language": "nl", "license": "CC0-1.0", "rights": rights}
        | {"opt_out": "opt-out.txt"}
    )
    config["corpus"]["main"]["exclude_sources"] = ["web"]
    config["interleaved"] = {"pages": {"sources": ["web"], "opt_out_images": "opted-out.txt"}}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    made.path("opted-out.txt").write_text("")
    made.path("opt-out.txt").write_text("beeld.nl\n")  # no record has a URL of this host
    return made


@pytest.mark.slow
def test_set_is_made_and_an_opted_out_image_leaves_it(project: Project) -> None:
    assert "opted-out.txt" not in project.run(CARD)
    documents = project.results / "interleaved/pages/documents/web.0.parquet"
    assert sorted(url for row in pq.read_table(documents)["images"].to_pylist() for url in row if url) == [
        *(f"{SITE}/a.jpg", f"{SITE}/b.jpg")
    ]
    record = json.loads((project.results / "provenance/records/interleaved.assemble.pages.json").read_text())
    assert record["counts"]["documents"] == 2
    project.path("opted-out.txt").write_text(f"{SITE}/b.jpg\n")
    assert dict(project.planned(CARD)) == {"interleaved_extract": 1, "interleaved_assemble": 1}
    project.run(CARD)
    assert pq.read_table(documents)["images"].to_pylist() == [[None, f"{SITE}/a.jpg"]]
    config = yaml.safe_load(project.path("config/micro.yaml").read_text())
    config["interleaved"]["pages"]["rules"] = {"spam_words": 0.5, "images": {"maximum_occurrences": 3}}
    project.path("config/micro.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    assert dict(project.planned(CARD)) == {"interleaved_assemble": 1}, "pages are not read again for rules on the set"
    config["interleaved"]["pages"]["word_lists"] = {"nl": {"flagged_words": "none.txt"}}
    project.path("config/micro.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    printed = project.run(CARD, check=False)
    assert "interleaved.pages.word_lists.nl.flagged_words: there is no file none.txt" in printed
    del config["interleaved"]["pages"]["word_lists"]
    project.path("config/micro.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    project.path("opted-out.txt").unlink()
    printed = project.run(CARD, check=False)
    assert project.returncode == 2 and "interleaved.pages.opt_out_images: there is no file opted-out.txt" in printed
