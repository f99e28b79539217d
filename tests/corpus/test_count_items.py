"""Items of later suites are counted in the final documents by the decontamination rules."""

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
    result = content["contamination"]["late"]
    assert counts == {"tasks": {"late": result["documents"]} if result["documents"] else {}}
    return result


@pytest.mark.parametrize("together", [1, 2, 1000])
def test_count_only_items_equal_what_decontamination_would_remove(
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
        result = count(chain, ["t", "s"], items, maximum_documents=limit)
        assert (chain.folder / "s.final").read_bytes(), "nothing is removed"
        changed = chain.corpus.decontamination.model_copy(update={"maximum_documents": limit})
        chain.corpus = chain.corpus.model_copy(update={"decontamination": changed})
        chain.decontaminate(["s", "t"], {"late.jsonl": items})
        assert result == chain.statistics(["s", "t"])["contamination"]["late"]
        assert result["found_items"] == (["1"] if limit == 3 else ["1", "2"]) and result[
            "items_with_common_n_grams"
        ] == (limit == 3)
        chain.decontaminate(["s", "t"], {})
