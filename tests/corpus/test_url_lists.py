"""Documents are removed by the domains and URLs of lists, with any spelling of their hosts."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document

from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.errors import InputError
from pipeline.corpus.settings import FilterSettings, UrlListFile
from pipeline.corpus.stated_language_and_url_filters import (
    UrlList,
    UrlListFilter,
    address_candidates,
    normalize_entry,
    read_url_list,
)
from pipeline.workflow.preflight import find_problems
from pipeline.workflow.steps import step_settings

RIGHTS = {"basis": "license", "holder": "iemand"}
SOURCE = {"name": "s", "path": "config/corpus/nl_gids.jsonl", "language": "nl", "license": "CC0-1.0", "rights": RIGHTS}
LIST = """# een lijst
voorbeeld.nl
blog.platform.nl
straße.de
HOOFDLETTERS.NL.
www.kranten.nl/sport
https://www.winkel.nl:443/caf%C3%A9/?q=1
forum.nl/a/
94.142.241.111
xn--mnchen-3ya.de/
"""


def match_urls(tmp_path: Path, *urls: str, content: str = LIST) -> list[str | None]:
    (tmp_path / "domains").write_text(content)
    listed = UrlList(tmp_path / "domains")
    return [listed.find_entry(list(address_candidates(url))) for url in urls]


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        ("https://voorbeeld.nl/", "voorbeeld.nl"),
        ("http://a.b.VOORBEELD.nl:8080/x", "voorbeeld.nl"),
        ("voorbeeld.nl", "voorbeeld.nl"),
        ("https://nietvoorbeeld.nl/", None),
        ("https://voorbeeld.nl.example.com/", None),
        ("https://blog.platform.nl/x", "blog.platform.nl"),
        ("https://ander.platform.nl/x", None),
        ("https://strasse.de/", None),
        ("https://xn--strae-oqa.de/", "xn--strae-oqa.de"),
        ("https://STRAẞE.de/", "xn--strae-oqa.de"),
        ("https://hoofdletters.nl/", "hoofdletters.nl"),
        ("https://kranten.nl/sport", "kranten.nl/sport"),
        ("http://www.kranten.nl/sport/voetbal?id=2#boven", "kranten.nl/sport"),
        ("http://www.kranten.nl/sport?id=2", "kranten.nl/sport"),
        ("https://www.kranten.nl/sporten", None),
        ("https://www.kranten.nl/", None),
        ("https://sub.kranten.nl/sport", None),
        ("https://winkel.nl/café/?q=1", "winkel.nl/café/?q=1"),
        ("https://winkel.nl/caf%c3%a9/?q=2", None),
        ("https://forum.nl/a/b/c", "forum.nl/a"),
        ("https://forum.nl/ab", None),
        ("https://forum.nl/a#boven", "forum.nl/a"),
        ("http://94.142.241.111/x", "94.142.241.111"),
        ("http://0x5e8ef16f/", "94.142.241.111"),
        ("https://münchen.de/rathaus", "xn--mnchen-3ya.de"),
        ("mailto:a@voorbeeld.nl", None),
        ("", None),
    ],
)
def test_url_matches_a_domain_its_subdomains_or_a_path_prefix(tmp_path: Path, url: str, entry: str | None) -> None:
    assert match_urls(tmp_path, url) == [entry]


def test_folder_of_a_list_is_not_part_of_the_settings(tmp_path: Path) -> None:
    folder = tmp_path / "jan-jansen" / "adult"
    folder.mkdir(parents=True)
    for file in (folder / "domains", folder.parent / "own.txt"):
        file.write_text("a.nl\n")
    lists = {"block": [str(folder), str(folder.parent / "own.txt")]}
    config = parse_configuration({"run": {"name": "t"}, "sources": [SOURCE | {"url_lists": lists}]})
    settings: Any = step_settings(config, "corpus.filter", {"source": "s", "corpus": "main"})
    assert [file.name for file in settings.blocked_urls] == ["adult/domains", "own.txt"]


def test_url_with_thousands_of_slashes_uses_little_memory(tmp_path: Path) -> None:
    url = "https://voorbeeld.nl" + "/a" * 5000
    candidates = list(address_candidates(url))
    assert sum(map(len, candidates)) < 50_000
    assert candidates[:3] == ["voorbeeld.nl", "nl", "voorbeeld.nl/a"] and candidates[-1] == url.removeprefix("https://")
    assert sum(map(len, address_candidates("https://a.nl/" + "a" * 10**5 + "/b" * 99))) < 3 * 10**5
    assert match_urls(tmp_path, url, content=f"{url[: 20 + 2 * 100]}/\n") == [f"voorbeeld.nl{'/a' * 100}"]
    assert match_urls(tmp_path, url, content=f"{url}\n") == [url.removeprefix("https://")]


def test_invalid_line_is_skipped_and_an_invalid_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "domains"
    path.write_bytes(b"\n".join(b"a%d.nl" % number for number in range(200)) + b"\ntwee woorden\n\xff\xfe.nl\n")
    listed = UrlList(path)
    assert (listed.entry_count, listed.invalid) == (200, [201, 202])
    path.write_text("een gewone zin\nvoorbeeld.nl\n")
    with pytest.raises(
        InputError, match=r"domains is no list of domains and addresses: 1 of its lines .* first line 1;"
    ):
        UrlList(path)
    path.write_text("")
    assert UrlList(path).find_entry(["a.nl"]) is None
    with pytest.raises(InputError, match=r"gone cannot be read"):
        UrlList(tmp_path / "gone")


def test_normalized_line_is_a_fixed_point_of_normalization() -> None:
    for line in ("voorbeeld.nl", "a_b.c-d.com", "xn--strae-oqa.de", "a.b.c.nl"):
        assert normalize_entry(line) == line
    assert normalize_entry("*.voorbeeld.nl") == normalize_entry("voorbeeld.nl.") == "voorbeeld.nl"


def test_changed_list_is_refused_and_a_list_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "domains").write_text(LIST)
    sha256 = hashlib.sha256(LIST.encode()).hexdigest()
    assert read_url_list(tmp_path / "domains", sha256) is read_url_list(tmp_path / "domains", sha256)
    with pytest.raises(InputError, match="domains changed after the run was planned: run snakemake again"):
        read_url_list(tmp_path / "domains", "0" * 64)


def configured(corpus: dict[str, Any], source: dict[str, Any]) -> Config:
    return parse_configuration(
        {
            "run": {"name": "t"},
            "sources": [{**SOURCE, "url_lists": source}],
            "corpus": {"main": {"url_lists": corpus}},
        }
    )


def filter_settings(config: Config) -> FilterSettings:
    settings = step_settings(config, "corpus.filter", {"source": "s", "corpus": "main"})
    assert isinstance(settings, FilterSettings)
    return settings


def test_lists_of_a_source_extend_those_of_its_corpus(tmp_path: Path) -> None:
    adult = tmp_path / "adult"
    adult.mkdir()
    (adult / "domains").write_text("a.nl\n")
    (adult / "urls").write_text("b.nl/x\n")
    (adult / "expressions").write_text("(porn)")
    (tmp_path / "own.txt").write_text("c.nl\n")
    config = configured({"block": [str(adult)]}, {"block": [str(tmp_path / "own.txt")], "allow": [str(adult)]})
    settings = filter_settings(config)
    assert [file.name for file in settings.blocked_urls] == ["adult/domains", "adult/urls", "own.txt"]
    assert [file.name for file in settings.allowed_urls] == ["adult/domains", "adult/urls"]
    assert settings.blocked_urls[0].sha256 == hashlib.sha256(b"a.nl\n").hexdigest()
    none = filter_settings(configured({}, {}))
    assert not {"blocked_urls", "allowed_urls"} & none.result_settings().keys()
    (adult / "domains").rename(adult / "domeinen")
    (adult / "urls").unlink()
    problems = [problem for problem in find_problems(config, {}, slurm=False) if "url_lists" in problem]
    assert len(problems) == 1 and "corpus.main: url_lists.block names" in problems[0]
    assert "a folder with a file `domains` or `urls`: correct its path" in problems[0]


def lists(tmp_path: Path, **contents: str) -> tuple[dict[str, list[dict[str, str]]], list[Path]]:
    """Return the settings and files of a block and an allow list."""
    keys, files = {}, []
    for key in ("blocked_urls", "allowed_urls"):
        if key in contents:
            files.append(tmp_path / key)
            files[-1].write_text(contents[key])
            keys[key] = [{"name": key, "sha256": hashlib.sha256(contents[key].encode()).hexdigest()}]
    return keys, files


def test_filter_removes_blocked_and_not_allowed_urls(chain: Any, texts: dict[str, str], tmp_path: Path) -> None:
    keys, files = lists(tmp_path, blocked_urls="slecht.nl\ngoed.nl/weg\n", allowed_urls="goed.nl\nslecht.nl\n")
    chain.reading, chain.url_lists = keys, files
    urls = ["https://goed.nl/x", "https://www.goed.nl/weg/1", "https://a.slecht.nl/", "https://elders.nl/a", None]
    kinds = ["nl_water", "nl_bakker", "nl_fiets", "en_garden", "en_lighthouse"]
    rows = [
        {"id": str(n), "text": texts[kind], "url": url} for n, (kind, url) in enumerate(zip(kinds, urls, strict=True))
    ]
    counts = chain.filter("s", {"x.jsonl.gz": gzip.compress("\n".join(map(json.dumps, rows)).encode())})
    assert {row["id"][-1]: (row["reason"], row["value"]) for row in chain.rows("s.filter")} == {
        "1": ("url_blocked", "blocked_urls: goed.nl/weg"),
        "2": ("url_blocked", "blocked_urls: slecht.nl"),
        "3": ("url_not_allowed", "elders.nl"),
        "4": ("url_not_allowed", "it has none"),
    }
    assert [row["id"] for row in chain.rows("s.filtered")] == ["s/x.jsonl.gz/0"]
    assert counts["documents_in"] == counts["documents_out"] + sum(counts["removed"].values()) == 5
    chain.reading, chain.url_lists = lists(tmp_path, blocked_urls="slecht.nl\n")
    assert chain.filter("s", {"x.jsonl": "\n".join(map(json.dumps, rows)).encode()})["removed"] == {"url_blocked": 1}


# Documents that datatrove 0.10.1's URLFilter removes with these lists and tldextract's public suffix list: of a
# host all URLs, or one path. It needs three packages that are not in the lock.
PEER_DOMAINS = ["slecht.nl", "blog.platform.nl", "site.co.uk", "xn--strae-oqa.de"]
PEER_ADDRESSES = ["https://krant.nl/weg", "https://www.forum.nl/a?b=1"]
PATHS = ["", "/", "/weg", "/wegen", "/a?b=1", "/a?b=2", "/a"]
REMOVED_BY_PEER = {
    **{host: PATHS for host in ("slecht.nl", "www.slecht.nl", "a.b.slecht.nl", "blog.platform.nl", "x.site.co.uk")},
    "xn--strae-oqa.de": PATHS,
    **{host: [] for host in ("goedslecht.nl", "slecht.nl.com", "platform.nl", "co.uk")},
    "krant.nl": ["/weg"],
    "www.forum.nl": ["/a?b=1"],
}


def test_decisions_equal_datatrove_on_domains_hosts_and_urls(tmp_path: Path) -> None:
    content = "\n".join([*PEER_DOMAINS, *PEER_ADDRESSES])
    (tmp_path / "x").write_text(content)
    settings = FilterSettings(
        **{"source": "s", "broken_share": 0, "languages": {}, "personal_data": {}},
        blocked_urls=[UrlListFile(name="x", sha256=hashlib.sha256(content.encode()).hexdigest())],
    )
    own = UrlListFilter(settings, [tmp_path / "x"])

    def is_removed(url: str) -> bool:
        return own.filter(Document(text="x", id="0", metadata={"url": url})) is not True

    for host, removed in REMOVED_BY_PEER.items():
        assert [path for path in PATHS if is_removed(f"https://{host}{path}")] == removed, host
    # Below a listed subdomain and a listed URL, and with another scheme, it keeps documents that Polder removes.
    for url in ("https://x.blog.platform.nl/", "https://krant.nl/weg/1", "http://krant.nl/weg"):
        assert is_removed(url)
