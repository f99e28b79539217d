"""A token of a training step is traced to its document and raw file, and each link is recomputed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.audit.document_lineage import trace_document
from pipeline.audit.training_documents import TrainingAudit
from pipeline.cli.application import main
from tests.conftest import Project


def test_token_is_traced_to_its_raw_file_and_masks_are_recounted(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)
    run = Path("results/micro")
    lines: list[str] = []
    audit = TrainingAudit(run, "base")
    for token in (0, 17, 63):
        assert main(["trace", str(run), "base", "--step", "3", "--sample", "1", "--token", str(token)]) == 0
        text = capsys.readouterr().out
        row, tokens, place = audit.find_token(3, 1, token)
        # Independent check: the batch that the training read has this token at this position.
        stream, start = audit.sampler.locate(int(audit.sampler.global_batch_sequence_numbers(2)[1]))
        assert audit.sampler.rows[stream].read(start + token, 1)[0] == tokens[place]
        assert f"  token {place} of the {len(tokens)} of document {row['id']}" in text
        assert "proven: the bytes of the index" in text and "its text gives these tokens again" in text
        assert f"raw file data:config/corpus/{row['id'].split('/')[1]}" in text or "nl_brieven" in row["id"]
        assert "proven: it is here with these bytes" in text
        lines.append(row["id"])

    source = lines[0].split("/")[0]
    final = next(path for path in (run / "corpus/main/final").glob(f"{source}.*.parquet"))
    table = pq.read_table(final)
    texts = [f"{text} ook" for text in table["text"].to_pylist()]
    pq.write_table(table.set_column(table.column_names.index("text"), "text", pa.array(texts)), final)
    main(["trace", str(run), "base", "--step", "3", "--sample", "1"])
    assert "ALTERED: it gives other tokens" in capsys.readouterr().out

    name = "nl_gids/nl_gids.jsonl/pii-mixed1"
    line = "    masked: bsn 1, email 1, iban 1 (recomputed from nl_gids.jsonl, which gives the text of the corpus)"
    assert line in trace_document(run, name)
    Path("config/corpus/nl_gids.jsonl").unlink()
    (line,) = (line for line in trace_document(run, name) if "masked" in line)
    assert "masked: not known of this document, for config/corpus/nl_gids.jsonl is not here" in line
    assert line.endswith("in all of unit 0: bsn 4, email 6, iban 6, ip 5")
