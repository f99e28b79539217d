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

from pipeline.core.hosts import split_url
from pipeline.corpus.personal_data.spans import PersonalDataSpan
from pipeline.corpus.personal_data.text_masking import KINDS, find_personal_data, mask_personal_data
from pipeline.corpus.settings import PersonalData
from pipeline.sources.raw_documents import WITHHELD_ID

_WITHHELD_FORM = re.compile(rf"{WITHHELD_ID}-\d+(#\d+)?")
_MAXIMUM_DECODINGS = 3
_BLANKS = str.maketrans("-.+", "   ")


def _decode_path(written: str) -> str:
    """Return a part of an address or an id as lines of words: a date in a path is no telephone number.

    It is without percent-encoding, also where that was encoded again.
    """
    for _ in range(_MAXIMUM_DECODINGS):
        written = unquote(written)
    return written.replace("_", " ").replace("/", "\n")


def _find_in_lines(words: str, kinds: PersonalData) -> list[PersonalDataSpan]:
    """Return what is found in lines of words; names also where hyphens, dots and plus signs stand for blanks."""
    found = find_personal_data(words, kinds)
    if kinds.names is not None:
        only_names = kinds.model_copy(update=dict.fromkeys(KINDS, False))
        found += find_personal_data(words.translate(_BLANKS), only_names)
    return found


def mask_value(value: str, kinds: PersonalData) -> str:
    """Return a short value with markers; where a path or percent-encoding hides something, that marker is all."""
    masked, _ = mask_personal_data(value, kinds)
    hidden = _find_in_lines(_decode_path(masked), kinds) if "%" in masked or "/" in masked else []
    return f"<{hidden[0].kind.upper()}>" if hidden else masked


class MetadataMasker:
    """Searches what stands beside a text for the kinds of personal data that are replaced in the text, names too.

    Where a corpus replaces nothing, everything stays as it is.
    """

    def __init__(self, kinds: PersonalData) -> None:
        self._kinds = kinds.model_copy(update={"replacement": "marker"})
        self._seeks = kinds.names is not None or any(getattr(kinds, kind) for kind in KINDS)

    def mask_text(self, text: str | None) -> str | None:
        """Return a title, or what decided about a document, with markers."""
        return text and mask_value(text, self._kinds)

    def mask_address(self, url: str | None) -> str | None:
        """Return scheme, host and path of an address.

        Userinfo, query and fragment are left out, for they tell who asked. A part of the path, or the host, in which
        something is found is the marker of that.
        """
        if not url or not self._seeks:
            return url
        parts = split_url(url)
        segments = [parts.authority, *re.split("[?#]", parts.rest, maxsplit=1)[0].split("/")]
        words = [_decode_path(segment) for segment in segments]
        ends = list(accumulate(len(segment) + 1 for segment in words))
        for found in reversed(_find_in_lines("\n".join(words), self._kinds)):
            for number in range(bisect(ends, found.start), bisect(ends, found.end - 1) + 1):
                segments[number] = f"<{found.kind.upper()}>"
        return f"{parts.prefix}{segments[0]}{'/'.join(segments[1:])}"

    def mask_id(self, document: Document) -> str:
        """Return the id of a document, by the number of its record where the id that it came with has something in it.

        An id that has the form of those is one, so that no two documents share an id.
        """
        original = document.metadata.get("original_id")
        if original is None:
            return str(document.id)
        if _WITHHELD_FORM.fullmatch(original) or _find_in_lines(_decode_path(original), self._kinds):
            return str(document.metadata["withheld_id"])
        return str(document.id)


class MetadataMaskingStep(PipelineStep):  # type: ignore[misc]
    """Replaces personal data in id, address and title of documents, and counts the fields in which some was found.

    It stands behind the opt-out lists, which name documents as their holders know them.
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
                known = document.metadata
                masked = {
                    "id": self.fields.mask_id(document),
                    "url": self.fields.mask_address(known["url"]),
                    "title": self.fields.mask_text(known["title"]),
                }
                self.counts["id"] += masked["id"] != document.id
                self.counts["url"] += "<" in (masked["url"] or "") and "<" not in known["url"]
                self.counts["title"] += masked["title"] != known["title"]
                document.id = masked.pop("id")
                known |= masked
            yield document


def main() -> None:
    """Read pairs of settings and names as JSON, and write for each the first name with markers, or null."""
    found = []
    for settings, names in json.load(sys.stdin):
        kinds = PersonalData.model_validate(settings)
        found.append(next((shown for name in names if (shown := mask_value(name, kinds)) != name), None))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
