"""Items of suites that were added later are counted in the final documents, by the rules of the decontamination."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.corpus import count_items
from pipeline.corpus.decontamination.settings import CountItemsSettings
from tests.corpus.decontamination.conftest import rows

pytestmark = pytest.mark.slow

SENTENCE = "Hij weegt het meel, mengt het met gist en zout, en laat het deeg rusten"


def count(chain: Any, sources: list[str], items: bytes, **settings: Any) -> dict[str, Any]:
    (chain.folder / "late.jsonl").write_bytes(items)
    counts = count_items.run(
        CountItemsSettings.model_validate(
            {"corpus": "main", "items": [{"task": "late", "name": "late.jsonl"}], **settings}
        ),
        files=[chain.folder / "late.jsonl"],
        final=[chain.folder / f"{source}.final" for source in sources],
        contamination=chain.folder / "later",
    )
    content: dict[str, Any] = json.loads((chain.folder / "later").read_text())
    assert content["corpus"] == "main"
    found = content["contamination"]["late"]
    assert counts == {"tasks": {"late": found["documents"]} if found["documents"] else {}}
    return found


@pytest.mark.parametrize("together", [1, 2, 1000])
def test_what_is_counted_is_what_a_decontamination_would_have_removed(
    chain: Any, texts: dict[str, str], as_json_lines: Any, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr("pipeline.corpus.documents.ROWS_PER_GROUP", together)
    again = {f"rij {number}": f"{texts['nl_fiets']} Dit is brief {number} van een reeks." for number in range(4)}
    for source, documents in {"s": texts, "t": again}.items():
        chain.filter(source, {"x.jsonl": as_json_lines(documents)})
    chain.corpus = chain.corpus.model_copy(
        update={"deduplication": chain.corpus.deduplication.model_copy(update={"minhash": False})}
    )
    chain.deduplicate(["s", "t"])
    phrase = texts["nl_fiets"].split(".")[0]
    items = rows({"q": SENTENCE}, {"q": phrase}, {"q": "er staat niets van deze zeven woorden in"})
    for limit in (3, 10):
        found = count(chain, ["t", "s"], items, maximum_documents=limit)
        assert (chain.folder / "s.final").read_bytes(), "nothing is removed"
        changed = chain.corpus.decontamination.model_copy(update={"maximum_documents": limit})
        chain.corpus = chain.corpus.model_copy(update={"decontamination": changed})
        chain.decontaminate(["s", "t"], {"late.jsonl": items})
        assert found == chain.statistics(["s", "t"])["contamination"]["late"]
        assert found["found_items"] == (["1"] if limit == 3 else ["1", "2"]) and found["phrases"] == (limit == 3)
        chain.decontaminate(["s", "t"], {})
