"""Texts and images of a page in their order, without menus, footers and dates."""

from __future__ import annotations

import json

import pytest

from pipeline.interleaved.page_nodes import PAGE_END, PageImage, PageNodes, dump_nodes, load_nodes, read_page_nodes

URL = "https://voorbeeld.nl/dorp/molen.html"


def nodes(body: str, url: str | None = URL) -> PageNodes:
    return read_page_nodes(f"<html><head><title>Titel</title></head><body>{body}</body></html>", url)


def images(body: str, url: str | None = URL) -> list[str]:
    return [node.url for node in nodes(body, url) if isinstance(node, PageImage)]


def test_texts_and_images_keep_their_order() -> None:
    body = '<p>Een</p><img src="a.jpg"><p>Twee</p><p>Drie <img src="/b.png"> vier</p>'
    one, first, two, second, three = nodes(body)
    assert (one, two, three) == ("Een", "Twee\n\nDrie", "vier")
    assert isinstance(first, PageImage) and first.url == "https://voorbeeld.nl/dorp/a.jpg"
    assert isinstance(second, PageImage) and second.url == "https://voorbeeld.nl/b.png"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<p>Een</p><p>twee</p>", "Een\n\ntwee"),
        ("<h2>Een</h2>twee", "Een\n\ntwee"),
        ("<div>Een</div><div>twee</div>", "Een\ntwee"),
        ("<div><p>Een</p></div><div>twee</div>", "Een\n\ntwee"),
        ("Een <b>twee</b>, <i>drie</i>", "Een twee, drie"),
        ("Een<b>twee</b>", "Eentwee"),
        ("Een\n  twee\t drie", "Een twee drie"),
        ("Een<br>twee", "Een\ntwee"),
        ("Een<br><br>twee", "Een\n\ntwee"),
        ("Een<!-- niet --> twee", "Een twee"),
        ("<figure>Een</figure>twee", "Eentwee"),
        ("<dl><dt>Een</dt><dd>twee</dd><dt>Drie</dt></dl>", "Een\ntwee\nDrie"),
        ("Een\x0btwee &#0;&#11;drie", "Een twee drie"),
    ],
)
def test_tags_separate_texts_by_a_paragraph_a_line_or_nothing(body: str, text: str) -> None:
    assert nodes(body) == [text]


@pytest.mark.parametrize(
    "left_out",
    [
        '<div id="menu">x</div>',
        '<div class="navbar">x</div>',
        '<div title="header">x</div>',
        '<p class="small footer">x</p>',
        '<section class="site-info">x</section>',
        "<nav>x</nav>",
        "<footer>x</footer>",
        "<table><tr><td>x</td></tr></table>",
        "<ul><li>x</li></ul>",
        "<script>x</script>",
        "<noscript>x</noscript>",
        '<div class="post-date">x</div>',
    ],
)
def test_menus_footers_tables_and_dates_are_left_out_and_what_follows_is_not(left_out: str) -> None:
    assert "".join(map(str, nodes(f"<p>Een</p>{left_out}twee"))).split() == ["Een", "twee"]


def test_menu_in_another_tag_or_class_stays() -> None:
    assert nodes('<p id="menu">Een</p><div class="menu kaart">twee</div>') == ["Een\n\ntwee"]


def test_text_in_a_tag_inside_a_date_stays() -> None:
    assert nodes('<div class="date">1 mei <b>Een</b> 2024</div>') == ["Een"]


def test_link_to_the_rest_ends_the_page() -> None:
    assert nodes('<p>Een<a class="btn more-link">lees verder</a></p><p>Twee</p>') == [f"Een\n\n{PAGE_END}\n\nTwee"]


@pytest.mark.parametrize(
    ("attributes", "url"),
    [
        ('src="a.jpg"', "https://voorbeeld.nl/dorp/a.jpg"),
        ('src="//beeld.nl/a.jpg"', "https://beeld.nl/a.jpg"),
        ('src="" data-src="../a.jpg"', "https://voorbeeld.nl/a.jpg"),
        ('src="a, b.jpg" data-original="c.jpg"', "https://voorbeeld.nl/dorp/c.jpg"),
        ('srcset="a.jpg 2x" data-lazy="c.jpg"', "https://voorbeeld.nl/dorp/c.jpg"),
    ],
)
def test_address_of_an_image_is_the_first_valid_one(attributes: str, url: str) -> None:
    assert images(f"<img {attributes}>") == [url]


@pytest.mark.parametrize("source", ["data:image/png;base64,eA==", "javascript:x", "http:///a.jpg", "http://[x/a.jpg"])
def test_image_without_an_address_is_left_out(source: str) -> None:
    assert images(f'<img src="{source}">') == []


def test_relative_address_needs_the_url_of_the_page_or_its_base() -> None:
    assert images('<img src="a.jpg">', None) == []
    page = '<html><head><base href="https://elders.nl/b/"></head><body><img src="a.jpg"></body></html>'
    (image,) = read_page_nodes(page, None)
    assert isinstance(image, PageImage) and image.url == "https://elders.nl/b/a.jpg"


def test_image_of_a_picture_has_its_description_and_size() -> None:
    image_tag = '<img src="a.jpg" alt=" Een \n molen " width="640px" height="50%">'
    (image,) = nodes(f'<picture><source srcset="a.webp 2x">{image_tag}</picture>')
    assert isinstance(image, PageImage)
    assert (image.alt, image.width, image.height) == ("Een molen", "640px", "50%")


def test_license_is_that_of_the_figure_or_of_structured_data() -> None:
    license = '<a rel="nofollow license" href="https://creativecommons.org/licenses/by/4.0/">CC BY</a>'
    data = (
        '<script type="application/ld+json">{"@graph": [{"@type": "ImageObject", "contentUrl": "/c.jpg", '
        '"license": "https://voorbeeld.nl/licentie"}]}</script><script type="application/ld+json">{</script>'
    )
    body = f'<img src="a.jpg"><figure><img src="b.jpg"><figcaption>{license}</figcaption></figure><img src="/c.jpg">'
    licenses = {node.url[-5:]: node.license for node in nodes(data + body) if isinstance(node, PageImage)}
    assert licenses == {
        "a.jpg": None,
        "b.jpg": "https://creativecommons.org/licenses/by/4.0/",
        "c.jpg": "https://voorbeeld.nl/licentie",
    }


@pytest.mark.parametrize(
    "data",
    [
        '{"@type": 5, "license": "x", "url": "/a.jpg"}',
        '{"@type": ["Thing", "ImageObject"], "license": [{}], "url": "/a.jpg"}',
        '{"@type": "ImageObject", "license": "x", "url": "http://[a.jpg", "contentUrl": 7}',
        '[null, 1, "x", {"@type": null, "license": {}}]',
        "",
    ],
)
def test_odd_structured_data_states_no_license(data: str) -> None:
    (image,) = nodes(f'<script type="application/ld+json">{data}</script><img src="/a.jpg">')
    assert isinstance(image, PageImage) and image.license is None


@pytest.mark.parametrize("kind", ["ImageObject", "http://schema.org/ImageObject", "schema:ImageObject"])
@pytest.mark.parametrize("license", ["https://x.nl/l", {"@id": "https://x.nl/l"}, ["https://x.nl/l"]])
def test_structured_data_states_a_license_in_several_forms(kind: str, license: object) -> None:
    data = json.dumps({"@type": kind, "license": license, "contentUrl": "http://voorbeeld.nl/a.jpg"})
    (image,) = nodes(f'<script type="application/ld+json; charset=utf-8">{data}</script><img src="/a.jpg">')
    assert isinstance(image, PageImage) and "https://x.nl/l" in str(image.license)


@pytest.mark.parametrize("place", ["footer", "table", "details"])
def test_license_in_a_part_of_a_figure_that_is_left_out_counts(place: str) -> None:
    link = f'<{place}><a rel="license" href="https://x.nl/l">x</a></{place}><a rel="license">zonder adres</a>'
    (image, _) = nodes(f'<figure><img src="/a.jpg">{link}</figure>')
    assert isinstance(image, PageImage) and image.license == "https://x.nl/l"


def test_half_of_a_surrogate_pair_and_a_broken_base_do_no_harm() -> None:
    data = '{"@type": ["ImageObject"], "license": "x\\ud800", "contentUrl": "https://voorbeeld.nl/a.jpg"}'
    script = f'<script type="application/ld+json">{data}</script>'
    page = f'<html><head><base href="http://[x"></head><body>{script}<img src="/a.jpg"></body></html>'
    (image,) = read_page_nodes(page, URL)
    assert isinstance(image, PageImage) and image.license == "x?"


def test_nodes_are_read_back_from_json() -> None:
    read = read_page_nodes("<p>Één</p><img src='a.jpg' alt='b'>", URL, "meta robots: noimageai")
    assert load_nodes(dump_nodes(read)) == read and len(read) == 2
    assert isinstance(read[1], PageImage) and read[1].reservation == "meta robots: noimageai"


def test_deeply_nested_page_is_read() -> None:
    assert nodes("<div>" * 3000 + "diep" + "</div>" * 3000) in (["diep"], [])
    assert nodes("") == []
