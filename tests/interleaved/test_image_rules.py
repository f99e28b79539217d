"""Which images are removed: by rights, URL, format, size and shape."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.interleaved.image_rules import count_shown_pixels, find_broken_image_rule, find_right
from pipeline.interleaved.page_files import ImageFile
from pipeline.interleaved.page_nodes import PageImage
from pipeline.interleaved.settings import ImageRules

URL = "https://voorbeeld.nl/foto.jpg"


def file(width: int = 400, height: int = 300, **changes: Any) -> ImageFile:
    return ImageFile(**{"sha256": "0" * 64, "format": "jpeg", "width": width, "height": height} | changes)


@pytest.mark.parametrize(
    ("written", "of_file", "pixels"),
    [
        ("640", None, 640),
        ("640px", None, 640),
        (' "640px;" ', None, 640),
        ("640.7", None, 640),
        ("50%", 801, 400),
        ("50%", None, None),
        ("auto", 800, 800),
        ("full-width", 800, 800),
        ("breed", 800, None),
        ("-5", 800, None),
        ("9" * 400, 800, None),
        ("9" * 5000 + "%", 800, None),
        (None, 800, None),
    ],
)
def test_shown_size_is_read_as_pixels_or_a_share(written: str | None, of_file: int | None, pixels: int | None) -> None:
    assert count_shown_pixels(written, of_file) == pixels


@pytest.mark.parametrize(
    ("image", "of_file", "reason"),
    [
        ({}, file(), None),
        ({}, None, None),
        ({"url": "https://voorbeeld.nl/Logo.png"}, file(), "url_words"),
        ({}, file(format="gif"), "format"),
        ({}, file(format=None), "unreadable"),
        ({}, file(149, 200), "size"),
        ({}, file(150, 300), None),
        ({}, file(20_000, 20_000), None),
        ({}, file(20_001, 20_000), "size"),
        ({"width": "149"}, file(), "size"),
        ({"height": "10%"}, file(), "size"),
        ({"width": "149"}, None, "size"),
        ({"width": "50%"}, None, None),
        ({}, file(601, 300), "aspect_ratio"),
        ({}, file(300, 601), "aspect_ratio"),
        ({}, file(600, 300), None),
    ],
)
def test_image_beyond_a_limit_is_removed(image: dict[str, str], of_file: ImageFile | None, reason: str | None) -> None:
    assert find_broken_image_rule(PageImage(**{"url": URL} | image), of_file, ImageRules()) == reason


def test_image_without_a_file_is_removed_on_request() -> None:
    assert find_broken_image_rule(PageImage(url=URL), None, ImageRules(needs_file=True)) == "no_file"
    assert find_broken_image_rule(PageImage(url=URL), file(), ImageRules(needs_file=True)) is None


@pytest.mark.parametrize(
    ("image", "of_file", "opted_out", "reason"),
    [
        ({}, None, set(), None),
        ({}, None, {URL}, "opt_out"),
        ({"reservation": "meta robots: noimageai"}, None, set(), "reserved_by_page"),
        ({}, file(reservation="header tdm-reservation: 1"), set(), "reserved_by_page"),
        ({}, file(reservation="header tdm-reservation: 0"), set(), None),
        ({"license": "https://creativecommons.org/licenses/by-nc/4.0/"}, None, set(), "license_not_allowed"),
        ({"license": "https://voorbeeld.nl/licentie"}, None, set(), "license_not_understood"),
        ({"license": " "}, None, set(), "license_not_understood"),
        ({"license": "https://creativecommons.org/licenses/by/4.0/"}, None, set(), None),
    ],
)
def test_image_with_reserved_rights_is_removed(
    image: dict[str, str], of_file: ImageFile | None, opted_out: set[str], reason: str | None
) -> None:
    given = PageImage(**{"url": URL} | image)
    assert find_right(given, of_file, opted_out.__contains__, ["CC-BY-4.0"])[0] == reason


def test_own_license_is_spdx_and_any_is_allowed_without_a_list() -> None:
    image = PageImage(url=URL, license="https://creativecommons.org/licenses/by-nc/4.0/")
    assert find_right(image, None, lambda url: False, []) == (None, "CC-BY-NC-4.0")
