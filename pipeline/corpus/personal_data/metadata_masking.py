"""Masks personal data in the metadata of a document: its id, URL and title.

`python -m pipeline.corpus.personal_data.metadata_masking` masks file names in a process of its own: the search takes
tens of megabytes, which a login node does not keep for a run.

Metadata gets markers even where the text gets synthetic values. A title or URL is so short that somebody could guess
the value that a synthetic one was drawn from.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from urllib.parse import unquote

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.core.url_hosts import split_url
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.spans import PersonalDataSpan
from pipeline.corpus.personal_data.text_masking import KINDS, find_personal_data, mask_personal_data
from pipeline.sources.raw_documents import WITHHELD_ID

_WITHHELD_FORM = re.compile(rf"{WITHHELD_ID}-\d+(#\d+)?")
_MAXIMUM_DECODINGS = 3
_BLANKS = str.maketrans("-.+", "   ")


def _decode_path(written: str) -> str:
    """Return a part of a URL or an id as lines of words, percent-decoded, also if it was encoded repeatedly.

    Slashes become line breaks, so that a date in a path is no telephone number.
    """
    for _ in range(_MAXIMUM_DECODINGS):
        written = unquote(written)
    return written.replace("_", " ").replace("/", "\n")


def _find_in_lines(words: str, kinds: PersonalData) -> list[PersonalDataSpan]:
    """Return the personal data in lines of words; for names, hyphens, dots and plus signs also separate words."""
    spans = find_personal_data(words, kinds)
    if kinds.names is not None:
        only_names = kinds.model_copy(update=dict.fromkeys(KINDS, False))
        spans += find_personal_data(words.translate(_BLANKS), only_names)
    return spans


def mask_short_text(value: str, kinds: PersonalData) -> str:
    """Return a short value with markers; if personal data is hidden by a path or encoding, return only its marker."""
    masked, _ = mask_personal_data(value, kinds)
    hidden = _find_in_lines(_decode_path(masked), kinds) if "%" in masked or "/" in masked else []
    return f"<{hidden[0].kind.upper()}>" if hidden else masked


class MetadataMasker:
    """Masks the metadata of documents for the same kinds of personal data as the text, including names.

    If the corpus replaces nothing, metadata stays unchanged.
    """

    def __init__(self, kinds: PersonalData) -> None:
        self._kinds = kinds.model_copy(update={"replacement": "marker"})
        self._seeks = kinds.names is not None or any(getattr(kinds, kind) for kind in KINDS)

    def mask_text(self, text: str | None) -> str | None:
        """Return a title, or the value of a removed document, with markers."""
        return text and mask_short_text(text, self._kinds)

    def mask_url(self, url: str | None) -> str | None:
        """Return scheme, host and path of a URL.

        Userinfo, query and fragment are dropped, because they identify the visitor. A host or part of the path with
        personal data is replaced by its marker.
        """
        if not url or not self._seeks:
            return url
        parts = split_url(url)
        segments = [parts.authority, *re.split("[?#]", parts.rest, maxsplit=1)[0].split("/")]
        words = [_decode_path(segment) for segment in segments]
        ends = list(accumulate(len(segment) + 1 for segment in words))
        for span in reversed(_find_in_lines("\n".join(words), self._kinds)):
            for number in range(bisect(ends, span.start), bisect(ends, span.end - 1) + 1):
                segments[number] = f"<{span.kind.upper()}>"
        return f"{parts.prefix}{segments[0]}{'/'.join(segments[1:])}"

    def mask_id(self, document: Document) -> str:
        """Return the id of a document, replaced by its record number if the original id has personal data.

        An original id in the form of replacements is also replaced, so that ids stay unique.
        """
        original = document.metadata.get("original_id")
        if original is None:
            return str(document.id)
        if _WITHHELD_FORM.fullmatch(original) or _find_in_lines(_decode_path(original), self._kinds):
            return str(document.metadata["withheld_id"])
        return str(document.id)


class MetadataMaskingStep(PipelineStep):  # type: ignore[misc]
    """Replaces personal data in id, URL and title of documents, and counts the changed fields.

    It runs after the opt-out filter, because opt-out lists use the original ids and URLs.
    """

    type = "🔒 - PERSONAL DATA"
    name = "Mask fields"

    def __init__(self, fields: MetadataMasker) -> None:
        super().__init__()
        self.fields = fields
        self.counts: Counter[str] = Counter()

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for document in data:
            with self.track_time():
                metadata = document.metadata
                masked = {
                    "id": self.fields.mask_id(document),
                    "url": self.fields.mask_url(metadata["url"]),
                    "title": self.fields.mask_text(metadata["title"]),
                }
                self.counts["id"] += masked["id"] != document.id
                self.counts["url"] += "<" in (masked["url"] or "") and "<" not in metadata["url"]
                self.counts["title"] += masked["title"] != metadata["title"]
                document.id = masked.pop("id")
                metadata |= masked
            yield document


def main() -> None:
    """Read pairs of settings and names as JSON; write for each the first name that masking changes, masked, or null."""
    masked_names = []
    for settings, names in json.load(sys.stdin):
        kinds = PersonalData.model_validate(settings)
        masked_names.append(next((shown for name in names if (shown := mask_short_text(name, kinds)) != name), None))
    json.dump(masked_names, sys.stdout)


if __name__ == "__main__":
    main()
