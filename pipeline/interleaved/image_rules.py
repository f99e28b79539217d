"""The rules on images of OBELICS, and the rights that are reserved on them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.corpus.documents import LICENSE_NOT_ALLOWED, LICENSE_NOT_UNDERSTOOD, OPT_OUT, RESERVED_BY_PAGE
from pipeline.interleaved.page_files import ImageFile
from pipeline.interleaved.page_nodes import PageImage
from pipeline.interleaved.settings import ImageRules
from pipeline.sources.spdx_license_parser import is_allowed, normalize_license
from pipeline.sources.web_reservation_rules import is_reserved

# Reasons, in the order in which the rules are applied after those on rights.
PERSONAL_DATA: Final = "personal_data"  # in the URL
URL_WORDS: Final = "url_words"
NO_FILE: Final = "no_file"
UNREADABLE: Final = "unreadable"
FORMAT: Final = "format"
SIZE: Final = "size"
ASPECT_RATIO: Final = "aspect_ratio"


def find_right(
    image: PageImage, file: ImageFile | None, is_opted_out: Callable[[str], bool], allowed_licenses: list[str]
) -> tuple[str | None, str | None]:
    """Return the reason of rights for which an image is removed, or None, and its own license as SPDX.

    Args:
        is_opted_out: whether an opt-out list or a file of the image's host reserves a URL.
        allowed_licenses: for an image that states one; empty allows all.
    """
    license = None
    if image.license is not None:
        license = normalize_license(normalize_nfc(image.license).strip() or "-", {})
    if is_opted_out(image.url):
        return OPT_OUT, license
    if image.reservation is not None or (file is not None and is_reserved(file.reservation)):
        return RESERVED_BY_PAGE, license
    if image.license is not None and allowed_licenses:
        if license is None:
            return LICENSE_NOT_UNDERSTOOD, None
        if not is_allowed(license, allowed_licenses):
            return LICENSE_NOT_ALLOWED, license
    return None, license


def count_shown_pixels(written: str | None, pixels_of_file: int | None) -> int | None:
    """Return a width or height in pixels as a page states it, in pixels or as a share of the file's; None if unknown.

    Args:
        written: such as 640, 640px, 640.5, 50%, auto.
    """
    if written is None:
        return None
    size = re.sub(r"[”\"<>;\s]", "", written).lower().removesuffix("px")
    share = re.fullmatch(r"(\d{1,4})%", "100%" if size in ("auto", "full-width") else size)
    if share:
        return None if pixels_of_file is None else round(pixels_of_file * int(share[1]) / 100)
    return int(float(size)) if re.fullmatch(r"\d{1,9}(\.\d*)?", size) else None


def find_broken_image_rule(image: PageImage, file: ImageFile | None, rules: ImageRules) -> str | None:
    """Return the first rule that an image breaks; None if it breaks none.

    Without its file, the format and the size of the file are unknown and break no rule but `needs_file`.
    """
    lowered = image.url.lower()
    if any(word in lowered for word in rules.url_words):
        return URL_WORDS
    if file is None and rules.needs_file:
        return NO_FILE
    if file is not None and file.format is None:
        return UNREADABLE
    if file is not None and file.format not in rules.formats:
        return FORMAT
    own = (file.width, file.height) if file is not None else (None, None)
    shown = (count_shown_pixels(image.width, own[0]), count_shown_pixels(image.height, own[1]))
    for side in (*own, *shown):
        if side is not None and not rules.minimum_pixels <= side <= rules.maximum_pixels:
            return SIZE
    if file is not None and max(own) > rules.maximum_aspect_ratio * min(own):  # type: ignore[type-var, operator]
        return ASPECT_RATIO
    return None
