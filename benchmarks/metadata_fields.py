"""Search titles and addresses of real documents for personal data: changes by kind, and added time.

    python benchmarks/metadata_fields.py FILE.jsonl.gz …

Each document's own address is joined by the addresses in its text, to have many different ones.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.corpus.personal_data.metadata_masking import MetadataMasker
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.text_masking import find_personal_data, mask_personal_data

ADDRESS = re.compile(r"https?://[^\s<>()\[\]\"'`,;]+[^\s<>()\[\]\"'`,;.:!?*]")
SHOWN = 60


def main(files: list[str]) -> None:
    """Print the numbers, and of what changed one of each form."""
    kinds = PersonalData()
    fields = MetadataMasker(kinds)
    documents = [json.loads(line) for file in files for line in gzip.decompress(Path(file).read_bytes()).splitlines()]
    mask_personal_data(documents[0]["text"], kinds)  # what is compiled at its first call
    began = time.process_time()
    for document in documents:
        mask_personal_data(document["text"], kinds)
    texts_seconds = time.process_time() - began
    began = time.process_time()
    for document in documents:
        fields.mask_text(document["title"])
        fields.mask_url(document["url"])
        fields.mask_text(document["id"])
    fields_seconds = time.process_time() - began
    print(f"{len(documents)} documents, CPU: texts {texts_seconds:.2f} s, id, title and address {fields_seconds:.2f} s")
    print(
        f"ids with something in them: {sum(bool(find_personal_data(document['id'], kinds)) for document in documents)}"
    )
    for what, search, values in (
        ("titles", fields.mask_text, {document["title"] for document in documents}),
        ("addresses", fields.mask_url, {document["url"] for document in documents}),
        ("addresses in texts", fields.mask_url, {url for d in documents for url in ADDRESS.findall(d["text"])}),
    ):
        results = {value: search(value) for value in sorted(values)}
        marked = {value: shown for value, shown in results.items() if "<" in (shown or "") and "<" not in value}
        shorter = sum(shown != value for value, shown in results.items()) - len(marked)
        print(f"{what}: {len(results)} different, {len(marked)} with a marker, {shorter} without query or fragment")
        distinct_forms = {re.sub(r"[^/]*[0-9A-Z]{8}[^/]*", "…", str(shown)): value for value, shown in marked.items()}
        for value in list(distinct_forms.values())[:SHOWN]:
            print(f"  {value} → {marked[value]}")


if __name__ == "__main__":
    main(sys.argv[1:])
