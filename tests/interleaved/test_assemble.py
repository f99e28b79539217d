"""A set has no duplicates of images, pages and paragraphs, and a card that says what each rule removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from pipeline.interleaved.page_nodes import PAGE_END
from pipeline.interleaved.settings import InterleavedRules
from tests.interleaved.conftest import OTHERS, PARAGRAPHS, Resource, Steps, archive, page, picture

SITE = "https://voorbeeld.nl"


def own(number: int) -> str:
    """Return a paragraph that no other page has."""
    return OTHERS[number]


def web_page(number: int, *parts: str, url: str = "", date: str = "2024-03-01T10:00:00Z") -> Resource:
    return Resource(url or f"{SITE}/{number}", page(*parts), date=date)


def img(*names: str) -> str:
    return "".join(f'<img src="/{name}.jpg">' for name in names)


def images(row: dict[str, Any]) -> list[str]:
    return [url.rpartition("/")[2] for url in row["images"] if url]


def check_sums(folder: Path) -> dict[str, Any]:
    stages: dict[str, Any] = json.loads((folder / "statistics.json").read_text())["stages"]
    for stage in stages.values():
        assert stage["extract"]["out"] == stage["assemble"]["in"]
        for part in stage.values():
            assert part["in"] == part["out"] + sum(part["removed"].values())
    return stages


def test_image_that_occurs_too_often_is_removed_everywhere(steps: Steps, tmp_path: Path) -> None:
    steps.rules = InterleavedRules.model_validate({"images": {"maximum_occurrences": 2}})
    pages = [web_page(n, own(n), own(n + 6), img("banner", f"f{n}")) for n in range(3)]
    steps.extract({"x.warc.gz": archive(*pages, web_page(3, own(3), own(9), img("banner")))})
    steps.assemble()
    assert sorted(map(images, steps.documents())) == [["f0.jpg"], ["f1.jpg"], ["f2.jpg"]]
    assert steps.assembled_removed() == {"urn:uuid:3": "image_count"}
    assert check_sums(tmp_path)["images"]["assemble"]["removed"] == {"frequent_image": 3, "of_removed_documents": 1}


def test_image_of_which_one_unit_has_the_file_is_one_image(steps: Steps) -> None:
    steps.rules = InterleavedRules.model_validate({"images": {"maximum_occurrences": 2}})
    shared = [web_page(n, own(n), own(n + 6), img("banner", f"f{n}")) for n in range(3)]
    pair = [web_page(n, own(n), own(n + 6), img("d", "e"), date=f"2024-01-0{n}T00:00:00Z") for n in (3, 4)]
    files = [
        Resource(f"{SITE}/{name}.jpg", picture(color), "image/jpeg")
        for name, color in (("banner", "red"), ("d", "blue"))
    ]
    steps.extract({"x.warc.gz": archive(*shared[:2], pair[0], *files)}, "a")
    steps.extract({"x.warc.gz": archive(shared[2], pair[1])}, "b")
    steps.assemble()
    assert sorted(map(images, steps.documents())) == [["d.jpg", "e.jpg"], ["f0.jpg"], ["f1.jpg"], ["f2.jpg"]]
    assert [*steps.assembled_removed().values()] == ["same_images"]


@pytest.mark.parametrize(("minimum", "kept"), [(0, [[], [], ["d.jpg"], ["e.jpg", "f.jpg"]]), (2, [["e.jpg", "f.jpg"]])])
def test_least_number_of_images_holds_for_the_finished_documents(
    steps: Steps, tmp_path: Path, minimum: int, kept: list[list[str]]
) -> None:
    steps.rules = InterleavedRules.model_validate({"minimum_images": minimum})
    shown = ["", "", img("d", "d"), img("e", "f")]
    steps.extract(
        {
            "x.warc.gz": archive(
                *(web_page(n, own(n), own(n + 6), each) for n, each in enumerate(shown) if minimum == 0 or each)
            )
        }
    )
    steps.assemble()
    assert sorted(map(images, steps.documents())) == kept
    check_sums(tmp_path)


def test_copies_of_an_image_are_one_by_the_hash_of_the_file(steps: Steps) -> None:
    files = [Resource(f"{SITE}/{name}.jpg", picture("red"), "image/jpeg") for name in ("a", "b")]
    other = Resource(f"{SITE}/c.jpg", picture("blue"), "image/jpeg")
    steps.extract({"x.warc.gz": archive(web_page(0, own(0), own(6), img("a", "b", "c")), *files, other)})
    steps.assemble()
    assert images(steps.documents()[0]) == ["a.jpg", "c.jpg"]


@pytest.mark.parametrize("sources", [("web",), ("eerste", "tweede")])
def test_latest_page_of_a_url_stays(steps: Steps, sources: tuple[str, ...]) -> None:
    url = f"{SITE}/?id=1"
    old = web_page(0, own(0), own(6), img("a"), url=url, date="2023-01-01T00:00:00Z")
    new = web_page(1, own(1), own(7), img("b"), url=url, date="2024-01-01T00:00:00Z")
    other = web_page(2, own(2), own(8), img("c"), url=f"{SITE}/?id=2", date="2022-01-01T00:00:00Z")
    if len(sources) == 1:
        steps.extract({"x.warc.gz": archive(new, old, other)})
    else:
        steps.extract({"x.warc.gz": archive(new)}, "eerste")
        steps.extract({"x.warc.gz": archive(old, other)}, "tweede")
    steps.assemble()
    assert sorted(map(images, steps.documents())) == [["b.jpg"], ["c.jpg"]], "a query makes another page"
    assert [*steps.assembled_removed().values()] == ["same_url"]


def test_page_with_the_images_of_a_later_one_is_removed(steps: Steps) -> None:
    old = web_page(0, own(0), own(6), img("a", "b"), date="2023-01-01T00:00:00Z")
    new = web_page(1, own(1), own(7), img("b", "a"), date="2024-01-01T00:00:00Z")
    steps.extract({"x.warc.gz": archive(old, new, web_page(2, own(2), own(8), img("a")))})
    steps.assemble()
    assert sorted(map(images, steps.documents())) == [["a.jpg"], ["b.jpg", "a.jpg"]]
    assert steps.assembled_removed() == {"urn:uuid:0": "same_images"}


def test_paragraph_that_a_domain_repeats_is_removed_from_all_its_pages(steps: Steps, tmp_path: Path) -> None:
    pages = [web_page(n, own(n), PARAGRAPHS[5], img(f"f{n}")) for n in range(2)]
    elsewhere = web_page(2, own(2), PARAGRAPHS[5], img("f2"), url="https://elders.nl/1")
    only = web_page(3, PARAGRAPHS[5], img("f3"))
    steps.extract({"x.warc.gz": archive(*pages, elsewhere, only)})
    steps.assemble()
    texts = sorted("\n\n".join(filter(None, row["texts"])) for row in steps.documents())
    assert texts == sorted([own(0), own(1), f"{own(2)}\n\n{PARAGRAPHS[5]}"])
    assert steps.assembled_removed() == {"urn:uuid:3": "no_text"}
    removed = check_sums(tmp_path)["paragraphs"]["assemble"]["removed"]
    assert removed == {"repeated_in_domain": 2, "of_removed_documents": 1}


def test_texts_around_a_removed_image_are_joined_and_invitations_removed(steps: Steps) -> None:
    spam = "En deel het met je vrienden op Facebook, en op Twitter."
    more = '<a class="more-link">meer</a>'
    steps.extract({"x.warc.gz": archive(web_page(0, own(0), img("a"), own(1), img("a"), own(2), spam, more, more))})
    steps.assemble()
    (row,) = steps.documents()
    assert row["texts"] == [own(0), None, f"{own(1)}\n\n{own(2)}"], "the last end of the page is that of the document"
    assert len(row["images"]) == len(row["image_metadata"]) == 3


def test_end_of_a_page_between_texts_stays_once(steps: Steps) -> None:
    more = '<a class="more-link">meer</a>'
    steps.extract({"x.warc.gz": archive(web_page(0, img("a"), own(0), more, more, img("a"), more, own(1)))})
    steps.assemble()
    assert steps.documents()[0]["texts"] == [None, f"{own(0)}\n\n{PAGE_END}\n\n{own(1)}"]


def test_set_is_read_by_datasets_and_its_card_says_what_was_removed(steps: Steps, tmp_path: Path) -> None:
    pages = [web_page(n, own(n), own(n + 6), img(f"f{n}", "logo")) for n in range(3)]
    steps.extract({"x.warc.gz": archive(*pages, web_page(3, own(3), own(9)))}, "laws")
    steps.extract({"x.warc.gz": archive(web_page(4, own(4), own(10), img("f4")))}, "web")
    steps.extract({"x.warc.gz": archive(web_page(5, own(5)))}, "empty")
    counts = steps.assemble()
    assert (counts["documents"], counts["images"], counts["paragraphs"]) == (4, 4, 8)
    read = load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(read) == 4 and read[0]["image_metadata"][0] is None and read[0]["images"][1].endswith(".jpg")
    card = (tmp_path / "README.md").read_text()
    assert "| extract | url\\_words | | 3 | |" in card.replace("|  |", "| |").replace("|  |", "| |"), card
    assert "4 documents with 4 images and 8 paragraphs; 6 pages were read" in card
    assert (
        "Not applied: stop\\_words for fy (no list), flagged\\_words for nl (no list)" in card
        and "minimum_pixels: 150" in card
    )


def test_order_of_units_does_not_change_the_set(steps: Steps, tmp_path: Path) -> None:
    for number, source in enumerate(("a", "b")):
        steps.extract({"x.warc.gz": archive(web_page(number, own(0), own(number + 6), img("f")))}, source)
    steps.assemble()
    before = {path.name: path.read_bytes() for path in (tmp_path / "documents").iterdir()}
    assert len(before) == 2 and len(steps.documents()) == 1
    for path in (tmp_path / "documents").iterdir():
        path.unlink()
    (tmp_path / "documents").rmdir()
    steps.assemble()
    assert {path.name: path.read_bytes() for path in (tmp_path / "documents").iterdir()} == before
