"""Pages and images are read from archives and HTML files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.interleaved.page_files import PageFiles, describe_image
from pipeline.interleaved.page_nodes import PageImage, load_nodes
from pipeline.sources.decompression import DamagedFile
from tests.interleaved.conftest import PARAGRAPHS, Resource, archive, page, picture

PAGE = page(PARAGRAPHS[0], '<img src="/a.jpg">')


def files(folder: Path, **contents: bytes) -> PageFiles:
    for name, content in contents.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return PageFiles("web", [(path.name, path) for path in sorted(folder.iterdir())])


def test_pages_of_an_archive_have_their_url_date_and_nodes(tmp_path: Path) -> None:
    resources = [
        Resource("https://voorbeeld.nl/1", PAGE),
        Resource("https://voorbeeld.nl/a.jpg", picture("red"), "image/jpeg"),
        Resource("https://voorbeeld.nl/2", page()),
    ]
    raw = files(tmp_path, x_warc_gz=archive(*resources))
    first, empty = raw.read_file_documents(*raw.files[0])
    assert (first.id, first.url, first.date) == ("web/x.warc.gz/urn:uuid:0", "https://voorbeeld.nl/1", "2024-03-01")
    text, image = load_nodes(str(first.text))
    assert text == PARAGRAPHS[0] and isinstance(image, PageImage) and image.url == "https://voorbeeld.nl/a.jpg"
    assert (empty.text, empty.reason) == (None, "no_main_text")


def test_html_file_is_one_page_without_a_url(tmp_path: Path) -> None:
    raw = files(tmp_path, a_html=PAGE.replace("/a.jpg", "https://voorbeeld.nl/a.jpg").encode())
    (document,) = raw.read_file_documents(*raw.files[0])
    assert document.url is None and len(load_nodes(str(document.text))) == 2
    assert raw.read_images() == {}


def test_images_of_archives_are_described(tmp_path: Path) -> None:
    content = picture("red", 640, 480, "PNG")
    reserved = [("TDM-Reservation", "0"), ("X-Robots-Tag", "noimageai")]
    raw = files(
        tmp_path,
        x_warc_gz=archive(
            Resource("https://voorbeeld.nl/a.png", content, "image/png"),
            Resource("https://voorbeeld.nl/b.jpg", content[:40], "image/jpeg", headers=reserved),
        ),
    )
    first, second = raw.read_images().values()
    assert (first.format, first.width, first.height, first.reservation) == ("png", 640, 480, None)
    assert first.sha256 == hashlib.sha256(content).hexdigest()
    assert second.reservation == "header x-robots-tag: noimageai"


@pytest.mark.parametrize("media_type", ["application/octet-stream", ""])
def test_image_without_its_media_type_is_described(tmp_path: Path, media_type: str) -> None:
    raw = files(tmp_path, x_warc_gz=archive(Resource("https://voorbeeld.nl/a.jpg", picture("red"), media_type)))
    assert [image.format for image in raw.read_images().values()] == ["jpeg"]


def test_too_large_image_is_unreadable(tmp_path: Path) -> None:
    content = picture("red")
    files(tmp_path, x_warc=archive(Resource("https://voorbeeld.nl/a.jpg", content, "image/jpeg")))
    for limit, form in ((len(content), "jpeg"), (len(content) - 1, None)):
        raw = PageFiles("web", [("x.warc.gz", tmp_path / "x.warc")], document_bytes=limit)
        assert [image.format for image in raw.read_images().values()] == [form]


@pytest.mark.parametrize("content", [b"", b"geen beeld", b"\x89PNG\r\n\x1a\n" + b"x" * 50])
def test_file_that_is_no_image_has_no_format(content: bytes) -> None:
    assert describe_image(content, []).format is None


def test_image_larger_than_pillow_opens_by_itself_is_described() -> None:
    assert describe_image(picture("red", 20_000, 10_000, "PNG"), []).width == 20_000


def test_truncated_archive_is_damaged(tmp_path: Path) -> None:
    whole = archive(Resource("https://voorbeeld.nl/1", PAGE), Resource("https://voorbeeld.nl/2", PAGE))
    raw = files(tmp_path, x_warc_gz=whole[:-30])
    with pytest.raises(DamagedFile):
        list(raw.read_file_documents(*raw.files[0]))
    with pytest.raises(DamagedFile):
        raw.read_images()


def test_other_formats_and_parts_of_files_are_refused(tmp_path: Path) -> None:
    raw = files(tmp_path, a_jsonl=b"{}")
    with pytest.raises(InputError, match=r"a\.jsonl: interleaved documents are made of web pages: use \.warc or"):
        list(raw.read_file_documents(*raw.files[0]))
    with pytest.raises(InputError, match=r"source web: a\.warc is larger than a unit.*make unit_bytes of the source"):
        PageFiles("web", [("a.warc", tmp_path)], is_part=True).check_whole()
