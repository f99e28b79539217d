"""Hosts are compared as in browsers: the cases of the URL Standard and of UTS 46, rewritten."""

from __future__ import annotations

import pytest

from pipeline.core.url_hosts import domain_suffixes, extract_host, normalize_valid_host, request_key, split_url

STRASSE = "xn--strae-oqa.de"  # straße.de, another name than strasse.de


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://straße.de/a", STRASSE),
        ("https://STRAẞE.de", STRASSE),
        ("https://strasse.de/a", "strasse.de"),
        ("https://xn--strae-oqa.de/a", STRASSE),
        ("HTTPS://XN--STRAE-OQA.DE", STRASSE),
        ("https://faß.de", "xn--fa-hia.de"),
        ("https://βόλος.com", "xn--nxasmm1c.com"),
        ("https://cafe\u0301.nl", "xn--caf-dma.nl"),
        ("https:/voorbeeld.nl/x", "voorbeeld.nl"),
        ("https:voorbeeld.nl/x", "voorbeeld.nl"),
        ("https:////voorbeeld.nl/x", "voorbeeld.nl"),
        ("https:\\\\voorbeeld.nl\\x", "voorbeeld.nl"),
        ("HTTP://VOORBEELD.NL:443/x", "voorbeeld.nl"),
        ("https://voorbeeld.nl:/x", "voorbeeld.nl"),
        ("https://jan:geheim@voorbeeld.nl/x", "voorbeeld.nl"),
        ("https://jan@ander.nl@voorbeeld.nl/x", "voorbeeld.nl"),
        ("https://voorbeeld.nl\\@ander.nl/x", "voorbeeld.nl"),
        ("https://voorbeeld.nl?@ander.nl", "voorbeeld.nl"),
        ("https://voorbeeld.nl#@ander.nl", "voorbeeld.nl"),
        ("https://voorbeeld.nl./x", "voorbeeld.nl"),
        ("https://voor%62eeld.nl/x", "voorbeeld.nl"),
        ("https://stra%C3%9Fe.de", STRASSE),
        ("https://ｖｏｏｒｂｅｅｌｄ．ｎｌ/x", "voorbeeld.nl"),
        ("https://voorbeeld。nl", "voorbeeld.nl"),
        ("https://voor\u00adbeeld.nl", "voorbeeld.nl"),
        ("https://voor\u200bbeeld.nl", "voorbeeld.nl"),
        (" https://voor\tbeeld.nl/x\n", "voorbeeld.nl"),
        ("ht\ntps://voorbeeld.nl", "voorbeeld.nl"),
        ("https://mijn_site.voorbeeld.nl", "mijn_site.voorbeeld.nl"),
        ("https://☃.net", "xn--n3h.net"),
        ("http://0x7F.1/x", "127.0.0.1"),
        ("http://0300.0250.0.1", "192.168.0.1"),
        ("http://3232235521", "192.168.0.1"),
        ("http://１２７.0.0.1", "127.0.0.1"),
        ("http://[2001:DB8:0:0::1]:80/x", "[2001:db8::1]"),
        ("http://[::127.0.0.1]", "[::7f00:1]"),
        ("//voorbeeld.nl/x", "voorbeeld.nl"),
        ("voorbeeld.nl:8080/x", "voorbeeld.nl"),
        ("voorbeeld.nl/x", "voorbeeld.nl"),
        ("gemini://voorbeeld.nl/x", "voorbeeld.nl"),
        ("file:///tmp/voorbeeld.nl", ""),
        ("mailto:jan@voorbeeld.nl", ""),
        ("urn:uuid:voorbeeld.nl", ""),
        ("/voorbeeld.nl", ""),
        ("", ""),
        (None, ""),
        ("http://[kapot", "[kapot"),
        ("http://Ka pot.voorbeeld.nl", "ka pot.voorbeeld.nl"),
        ("http://1.2.3.400", "1.2.3.400"),
    ],
)
def test_host_of_a_url(url: str | None, host: str) -> None:
    assert extract_host(url) == host


@pytest.mark.parametrize("host", ["ka pot.nl", "a<b.nl", "1.2.3.400", "0x1.2.3.4.5", "[::1", "a\ufffdb.nl", "a%zz.nl"])
def test_host_rejected_by_browsers(host: str) -> None:
    with pytest.raises(ValueError):
        normalize_valid_host(host.replace("[::1", "[::1::"))


def test_parts_of_a_url_keep_their_spelling() -> None:
    address = split_url("HTTPS:\\\\jan:pw@Voorbeeld.NL:8080/Pad?q#f")
    assert address == ("https://", "Voorbeeld.NL:8080", "/Pad?q#f", "voorbeeld.nl")


def test_request_of_an_image_is_one_however_it_is_written() -> None:
    written = ("http://voorbeeld.nl/é?a=b", "https://Voorbeeld.nl:443/%C3%A9?a=b#c", "//jan@voorbeeld.nl/é?a=b")
    assert {request_key(url) for url in written} == {"voorbeeld.nl:/%C3%A9?a=b"}
    others = ("https://voorbeeld.nl/E?a=b", "https://voorbeeld.nl:8080/é?a=b", "https://[::1]/é?a=b")
    assert [request_key(url) for url in others] == [
        *("voorbeeld.nl:/E?a=b", "voorbeeld.nl:8080/%C3%A9?a=b", "[::1]:/%C3%A9?a=b")
    ]


def test_host_has_domain_suffixes_and_an_ip_address_has_none() -> None:
    assert [*domain_suffixes("a.voorbeeld.nl")] == ["a.voorbeeld.nl", "voorbeeld.nl", "nl"]
    assert [*domain_suffixes("10.0.0.1")] == ["10.0.0.1"]
    assert [*domain_suffixes("[::1]")] == ["[::1]"]
    assert [*domain_suffixes("")] == []
