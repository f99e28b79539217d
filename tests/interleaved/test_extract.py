"""Pages become documents of texts and images, and every page, image and paragraph is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.interleaved.extract import INTERLEAVED_SCHEMA
from pipeline.interleaved.settings import InterleavedRules
from tests.interleaved.conftest import PARAGRAPHS, Resource, Steps, archive, page, picture

SITE = "https://voorbeeld.nl"
OPT_OUTS = {"domains": [], "ids": [], "holders": [], "holder": "someone"}


def web_page(number: int, *parts: str, head: str = "", **changes: Any) -> Resource:
    return Resource(f"{SITE}/{number}", page(*parts, head=head), **changes)


def image(name: str, color: str = "red", **size: int) -> Resource:
    return Resource(f"{SITE}/{name}.jpg", picture(color, **size), "image/jpeg")


def check_sums(counts: dict[str, Any]) -> None:
    for kind in ("documents", "images", "paragraphs"):
        removed = sum(number for reason, number in counts[kind].items() if reason != "in")
        assert counts[kind]["in"] == removed + counts[f"{kind}_out"], kind


def test_document_has_texts_and_images_at_their_places(steps: Steps) -> None:
    parts = (*PARAGRAPHS[:2], '<img src="/a.jpg" alt="Mail jan@xs4all.nl" width="50%">', PARAGRAPHS[2])
    counts = steps.extract({"x.warc.gz": archive(web_page(1, *parts), image("a"))})
    (row,) = steps.extracted()
    assert [*INTERLEAVED_SCHEMA.names, "url_hash"] == [*row]
    assert row["texts"] == ["\n\n".join(PARAGRAPHS[:2]), None, PARAGRAPHS[2]]
    assert row["images"] == [None, f"{SITE}/a.jpg", None]
    assert [one is None for one in row["image_metadata"]] == [True, False, True]
    metadata = row["image_metadata"][1]
    assert (metadata["alt"], metadata["format"], metadata["license"]) == ("Mail <EMAIL>", "jpeg", None)
    assert (metadata["width"], metadata["height"], metadata["shown_width"], metadata["shown_height"]) == (
        *(400, 300, 200, None),
    )
    assert (row["language"], row["date"], row["url"]) == ("nl", "2024-03-01", f"{SITE}/1")
    assert counts["documents"] == {"in": 1} and counts["images"]["in"] == 1 and counts["paragraphs"]["in"] == 3
    check_sums(counts)


def test_each_removed_page_has_one_reason_and_the_sums_agree(steps: Steps) -> None:
    with_image = '<img src="/a.jpg">'
    english = "The miller walks to the dyke every morning, and he looks whether the water is higher than it was before."
    resources = [
        web_page(0, *PARAGRAPHS[:3], with_image),
        web_page(1, *PARAGRAPHS[:3]),
        web_page(2, *PARAGRAPHS[:3], '<img src="/logo.jpg"><img src="/klein.jpg">'),
        web_page(3, "De molen staat er nog.", with_image),
        web_page(4, *PARAGRAPHS[:3], with_image, head='<meta name="tdm-reservation" content="1">'),
        web_page(5, *PARAGRAPHS[:3], with_image, head='<meta name="robots" content="noimageai">'),
        web_page(6, "Der Müller geht jeden Morgen zum Deich und schaut, ob das Wasser höher steht.", with_image),
        web_page(7, english, with_image, with_image),
        web_page(8),
        image("a"),
        image("klein", height=100),
    ]
    counts = steps.extract({"x.warc.gz": archive(*resources)})
    assert steps.removed() == {
        "urn:uuid:1": "image_count",
        "urn:uuid:2": "image_count",
        "urn:uuid:3": "word_count",
        "urn:uuid:4": "reserved_by_page",
        "urn:uuid:5": "image_count",
        "urn:uuid:6": "language",
        "9": "no_main_text",
    }
    assert [row["id"][-1] for row in sorted(steps.extracted(), key=lambda row: row["id"])] == ["0", "7"]
    removed_images = {"reserved_by_page": 1, "size": 1, "url_words": 1, "of_removed_documents": 1}
    assert counts["images"] == {"in": 7, **removed_images}
    check_sums(counts)


def test_page_of_images_alone_is_removed(steps: Steps) -> None:
    counts = steps.extract({"x.warc.gz": archive(web_page(0, '<img src="/a.jpg">'), web_page(1, *PARAGRAPHS[:3]))})
    assert steps.extracted() == [] and len(steps.removed()) == 2
    check_sums(counts)
    assert steps.assemble()["documents"] == 0


def test_paragraph_that_breaks_a_rule_is_removed_alone(steps: Steps) -> None:
    menu = "Start Nieuws Contact Route"
    counts = steps.extract(
        {"x.warc.gz": archive(web_page(0, *PARAGRAPHS[:2], menu, PARAGRAPHS[2], '<img src="/a.jpg">'))}
    )
    assert steps.extracted()[0]["texts"] == ["\n\n".join(PARAGRAPHS[:3]), None]
    assert counts["paragraphs"] == {"in": 4, "stop_words": 1, "of_removed_documents": 0}


def test_lists_of_words_and_opted_out_images_apply(steps: Steps, tmp_path: Path) -> None:
    for name, lines in (("flagged", "Molenaar\n"), ("urls", f"\ufeff{SITE}/b.jpg\n\n")):
        (tmp_path / name).write_text(lines)
    steps.lists = {("flagged_words", "nl"): tmp_path / "flagged", ("opt_out_images", ""): tmp_path / "urls"}
    body = (*PARAGRAPHS[:4], '<img src="/a.jpg"><img src="/b.jpg">')
    counts = steps.extract({"x.warc.gz": archive(web_page(0, *body))})
    (row,) = steps.extracted()
    assert row["texts"][0] == "\n\n".join(PARAGRAPHS[1:4]) and row["images"] == [None, f"{SITE}/a.jpg"]
    assert counts["paragraphs"]["flagged_words"] == 1 and counts["images"]["opt_out"] == 1


def test_opt_out_list_covers_pages_and_hosts_of_images(steps: Steps, tmp_path: Path) -> None:
    robots = {"host": "beeld.nl", "file": "robots.txt", "agents": ["gptbot"], "rules": "User-agent: *\nDisallow: /a"}
    listed = {"domains": ["weg.nl"], "reservations": [robots | {"url": "https://beeld.nl/robots.txt", "sha256": ""}]}
    (tmp_path / "opt-out.json").write_text(json.dumps(listed))
    steps.lists = {("opt_out", ""): tmp_path / "opt-out.json"}
    steps.opt_out = OPT_OUTS | {"domains": ["weg.nl"]}  # no record of the unit names beeld.nl
    parts = (
        *PARAGRAPHS[:3],
        '<img src="https://x.weg.nl/1.jpg"><img src="//beeld.nl/a.jpg"><img src="//beeld.nl/b.jpg">',
    )
    resources = [web_page(0, *parts), Resource("https://www.weg.nl/1", page(*parts))]
    counts = steps.extract({"x.warc.gz": archive(*resources)})
    (row,) = steps.extracted()
    assert row["images"] == [None, "https://beeld.nl/b.jpg"]
    assert steps.removed() == {"urn:uuid:1": "opt_out"} and counts["images"] == {
        "in": 3,
        "opt_out": 2,
        "of_removed_documents": 0,
    }


def test_image_is_opted_out_and_known_however_its_url_is_written(steps: Steps, tmp_path: Path) -> None:
    (tmp_path / "urls").write_text("http://Voorbeeld.nl:80/a.jpg\nhttps://voorbeeld.nl/caf%C3%A9.jpg\n")
    steps.lists = {("opt_out_images", ""): tmp_path / "urls"}
    reserved = Resource(f"{SITE}/d%C3%A9.jpg", picture("red"), "image/jpeg", headers=[("X-Robots-Tag", "noai")])
    body = '<img src="/a.jpg#x"><img src="/café.jpg"><img src="/dé.jpg#y"><img src="/b.jpg">'
    counts = steps.extract({"x.warc.gz": archive(web_page(0, *PARAGRAPHS[:3], body), reserved)})
    assert steps.extracted()[0]["images"] == [None, f"{SITE}/b.jpg"]
    assert counts["images"]["opt_out"] == 2 and counts["images"]["reserved_by_page"] == 1


def test_list_in_another_encoding_is_refused(steps: Steps, tmp_path: Path) -> None:
    (tmp_path / "urls").write_bytes(b"https://voorbeeld.nl/caf\xe9.jpg\n")
    steps.lists = {("opt_out_images", ""): tmp_path / "urls"}
    with pytest.raises(InputError, match=r"urls is not UTF-8: convert this list of opt_out_images"):
        steps.extract({"x.warc.gz": archive(web_page(0, *PARAGRAPHS[:3]))})


def test_own_license_of_an_image_is_kept_or_removes_it(steps: Steps) -> None:
    def figure(name: str, license: str) -> str:
        address = f"https://creativecommons.org/licenses/{license}/4.0/"
        return f'<figure><img src="/{name}.jpg"><a rel="license" href="{address}"></a></figure>'

    steps.settings["allowed_licenses"] = ["CC-BY-4.0", "CC0-1.0"]
    resource = web_page(0, *PARAGRAPHS[:3], figure("a", "by"), figure("b", "by-nc"))
    counts = steps.extract({"x.warc.gz": archive(resource)})
    (row,) = steps.extracted()
    assert row["images"][1:] == [f"{SITE}/a.jpg"] and row["image_metadata"][1]["license"] == "CC-BY-4.0"
    assert counts["images"]["license_not_allowed"] == 1


def test_personal_data_in_texts_and_urls_does_not_get_in(steps: Steps) -> None:
    text = f"{PARAGRAPHS[0]} Mail naar jan.devries@xs4all.nl voor de sleutel."
    body = page(text, *PARAGRAPHS[1:3], '<img src="/jan.devries@xs4all.nl.jpg"><img src="/a.jpg?v=2">')
    counts = steps.extract({"x.warc.gz": archive(Resource(f"{SITE}/?wie=jan.devries@xs4all.nl", body))})
    (row,) = steps.extracted()
    assert "jan.devries" not in str(row) and "<EMAIL>" in row["texts"][0] and row["url"] == f"{SITE}/"
    assert row["images"][1:] == [f"{SITE}/a.jpg?v=2"], "an address without its query is another image"
    assert counts["images"]["personal_data"] == 1 and counts["personal_data"] == {"email": 1}


def test_address_in_two_paragraphs_is_replaced_and_counted(steps: Steps, tmp_path: Path) -> None:
    halves = (
        "Je kunt ons altijd een brief sturen, en wij wonen aan de Dorpsstraat 12",
        "1234 AB Ede is waar je dan moet zijn, als je het ons zelf wilt brengen of vertellen.",
    )
    counts = steps.extract({"x.warc.gz": archive(web_page(0, *PARAGRAPHS[:3], *halves, '<img src="/a.jpg">'))})
    (row,) = steps.extracted()
    assert "Dorpsstraat" not in str(row) and row["texts"][0].count("\n\n") == 3
    assert counts["paragraphs"] == {"in": 5, "personal_data": 1, "of_removed_documents": 0}
    assert steps.assemble()["paragraphs"] == 4


def test_license_that_names_a_person_is_masked(steps: Steps) -> None:
    data = {"@type": "ImageObject", "contentUrl": f"{SITE}/a.jpg", "license": "Vraag jan@xs4all.nl"}
    script = f'<script type="application/ld+json">{json.dumps(data)}</script><img src="/a.jpg">'
    steps.extract({"x.warc.gz": archive(web_page(0, *PARAGRAPHS[:3], script))})
    assert steps.extracted()[0]["image_metadata"][1]["license"] == "Vraag <EMAIL>"


def test_images_of_any_archive_of_the_unit_are_known(steps: Steps) -> None:
    steps.rules = InterleavedRules.model_validate({"images": {"needs_file": True}})
    resource = web_page(0, *PARAGRAPHS[:3], '<img src="/a.jpg"><img src="/b.jpg">')
    counts = steps.extract({"x.warc.gz": archive(resource), "y.warc.gz": archive(image("a"))})
    assert steps.extracted()[0]["images"][1:] == [f"{SITE}/a.jpg"] and counts["images"]["no_file"] == 1


def test_damaged_archive_is_refused_or_skipped_whole(steps: Steps, tmp_path: Path) -> None:
    whole = archive(web_page(0, *PARAGRAPHS[:3], '<img src="/a.jpg">'))
    damaged = archive(web_page(1, *PARAGRAPHS[:3], '<img src="/a.jpg">'), image("a"))[:-40]
    with pytest.raises(InputError, match=r"y\.warc\.gz is truncated"):
        steps.extract({"x.warc.gz": whole, "y.warc.gz": damaged})
    again = Steps(tmp_path / "again", settings={"quarantine": True})
    counts = again.extract({"x.warc.gz": whole, "y.warc.gz": damaged})
    assert len(again.extracted()) == 1 and [one["file"] for one in counts["quarantined"]] == ["y.warc.gz"]
    check_sums(counts)
    with pytest.raises(InputError, match=r"source web: .* are in damaged files, y\.warc\.gz \(truncated\)"):
        again.assemble()
    again.damaged_share = 0.9
    again.assemble()
    assert "| 1 |" in (again.folder / "README.md").read_text()


def test_archive_without_a_page_makes_no_set(steps: Steps) -> None:
    steps.extract({"x.warc.gz": archive(image("a"))})
    with pytest.raises(InputError, match=r"interleaved\.pages\.sources: web have no web page: name HTML files, or"):
        steps.assemble()
    assert [path.name for path in steps.folder.iterdir() if path.name in ("documents", "README.md")] == []


def test_order_of_files_does_not_change_the_documents(steps: Steps, tmp_path: Path) -> None:
    archives = [archive(web_page(number, *PARAGRAPHS[number:], '<img src="/a.jpg">')) for number in range(3)]
    steps.extract({f"{number}.warc.gz": content for number, content in enumerate(archives)})
    again = Steps(tmp_path / "again")
    again.extract({f"{number}.warc.gz": archives[number] for number in (2, 0, 1)})
    files = [folder / "extracted/web.0.parquet" for folder in (tmp_path, tmp_path / "again")]
    assert files[0].read_bytes() == files[1].read_bytes() and len(steps.extracted()) == 3
