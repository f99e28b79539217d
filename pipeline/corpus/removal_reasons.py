"""The names of the reasons that are neither a measure's nor a reader's, each in one place.

`pipeline.corpus.reason_sentences` knows every reason, with what `corpus why` says of it.
"""

from __future__ import annotations

from typing import Final

OPT_OUT: Final = "opt_out"  # its holder reserved it, or it is a copy of what a holder reserved
LICENSE_NOT_STATED: Final = "license_not_stated"  # of its own, where the source names the field for it
LICENSE_NOT_UNDERSTOOD: Final = "license_not_understood"
LICENSE_NOT_ALLOWED: Final = "license_not_allowed"
LICENSE_DIFFERS: Final = "license_differs"  # from that of its source, which names no field for it
HARMFUL: Final = "harmful"  # a list or classifier flagged it that removes what it flags
LANGUAGE: Final = "language"
MIXED_LANGUAGE: Final = "mixed_language"
EMPTY: Final = "empty"  # no text is left that could be measured
LOREM_IPSUM: Final = "lorem_ipsum"
CURLY_BRACKET: Final = "curly_bracket"
TOO_FEW_SENTENCES: Final = "too_few_sentences"
EXACT_DUPLICATE: Final = "exact_duplicate"
NEAR_DUPLICATE: Final = "near_duplicate"
DUPLICATE_PARAGRAPHS: Final = "duplicate_paragraphs"  # of the deduplication: all of them occurred in other documents
CONTAMINATED: Final = "contaminated"
OF_LICENSE = (
    LICENSE_NOT_STATED,
    LICENSE_NOT_UNDERSTOOD,
    LICENSE_NOT_ALLOWED,
    LICENSE_DIFFERS,
)
OF_RIGHTS = (OPT_OUT, *OF_LICENSE)
