"""Files in which hosts reserve rights become an opt-out list, which decides by URL."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from pipeline.cli.entry_point import main
from pipeline.core.errors import InputError
from pipeline.opt_out.lists import publishable_list, read_opt_out_list
from pipeline.opt_out.opt_out_list_from_reservations import AI_AGENTS, MAXIMUM_BYTES, collect_reservations
from pipeline.sources.settings import OptOut
from pipeline.sources.web_reservation_rules import WebReservations
from tests.opt_out.test_opt_out import Source

AGENTS = "User-agent: GPTBot\nUser-agent: ccbot # of Common Crawl\n"
ROBOTS = f"# bel 06-12345678\n{AGENTS}Disallow: /nieuws\nAllow: /nieuws/vrij\n"
TDM = [{"location": "/open/", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": 1}]


def row(host: str, body: object, file: str = "robots.txt", **fields: Any) -> dict[str, Any]:
    written = body if isinstance(body, str) else json.dumps(body)
    place = f".well-known/{file}" if file == "tdmrep.json" else file
    return {"url": f"https://{host}/{place}", "fetched": "2024-05-02", "status": 200, "body": written} | fields


def collected(folder: Path, *rows: dict[str, Any], **options: Any) -> OptOut:
    path = folder / "captures.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return collect_reservations([path], **options)


def entries(listed: OptOut, *urls: str, **stated: bool) -> list[list[str]]:
    reservations = WebReservations(listed.reservations)
    return [[*reservations.matching_entries(url, **stated)] for url in urls]


def test_url_that_a_listed_agent_may_not_fetch_is_reserved(tmp_path: Path) -> None:
    listed = collected(tmp_path, row("krant.nl", ROBOTS))
    (reservation,) = listed.reservations
    assert (reservation.host, reservation.file, reservation.agents) == (
        "krant.nl",
        "robots.txt",
        ["*", "CCBot", "GPTBot"],
    )
    assert reservation.sha256 == hashlib.sha256(ROBOTS.encode()).hexdigest()
    assert reservation.rules == ("User-agent: GPTBot\nUser-agent: ccbot\nDisallow: /nieuws\nAllow: /nieuws/vrij"), (
        "comments may hold personal data"
    )
    reserved = ["robots.txt krant.nl: CCBot, GPTBot"]
    assert entries(
        listed,
        "https://krant.nl/nieuws/1?page=2",
        "HTTP://Krant.NL:80/nieuws/1#top",
        "krant.nl/nieuws",
        "https://krant.nl/nieuws/vrij/1",
        "https://krant.nl/sport",
        "https://www.krant.nl/nieuws/1",
        "",
    ) == [reserved, reserved, reserved, [], [], [], []]


@pytest.mark.parametrize(
    ("robots", "unnamed", "reserved"),
    [
        ("User-agent: *\nDisallow: /", True, "*"),
        ("User-agent: *\nDisallow: /", False, None),
        ("User-agent: *\nDisallow: /\n\nUser-agent: GPTBot\nDisallow:", True, "*"),
        ("User-agent: *\nDisallow: /\n\nUser-agent: GPTBot\nDisallow: /", False, "GPTBot"),
        ("User-agent: Googlebot\nDisallow: /", True, None),
        ("User-agent: CCBot\nDisallow:", True, None),
        ("User-agent: CCBot\nCrawl-delay: 5", True, None),
        ("\ufeffUSER-AGENT : gptbot\r\nDISALLOW : /", True, "GPTBot"),
        ("<!DOCTYPE html>\nUser-agent: *\nDisallow: /", True, None),
    ],
)
def test_robots_txt_agents_that_reserve(robots: str, unnamed: bool, reserved: str | None, tmp_path: Path) -> None:
    listed = collected(tmp_path, row("krant.nl", robots), unnamed=unnamed)
    shown = f"robots.txt krant.nl: {reserved}"
    assert entries(listed, "https://krant.nl/a") == [[shown] if reserved else []]


def test_user_may_configure_other_agents(tmp_path: Path) -> None:
    robots = "User-agent: MyBot\nDisallow: /"
    assert entries(collected(tmp_path, row("a.nl", robots), unnamed=False), "https://a.nl/") == [[]]
    listed = collected(tmp_path, row("a.nl", robots), agents=["mybot"])
    assert entries(listed, "https://a.nl/") == [["robots.txt a.nl: mybot"]]
    assert listed.reservations[0].agents == ["mybot"], "no agent remains for the rules of *"
    assert collected(tmp_path, row("a.nl", robots), agents=["x"], unnamed=False).reservations == []
    assert {"GPTBot", "CCBot", "ClaudeBot", "Google-Extended", "anthropic-ai", "Bytespider"} <= {*AI_AGENTS}


@pytest.mark.parametrize(
    ("path", "reserved"),
    [
        ("/a", "/"),
        ("/open/a", None),
        ("/op%65n/a", None),
        ("/Open/a", "/"),
        ("/exact", None),
        ("/exact/a", "/"),
        ("/x/1/y", "/x/*/y"),
    ],
)
def test_first_matching_tdmrep_rule_decides(path: str, reserved: str | None, tmp_path: Path) -> None:
    more = [{"location": "/exact$", "tdm-reservation": 0}, {"location": "/x/*/y", "tdm-reservation": "1"}, *TDM]
    listed = collected(tmp_path, row("krant.nl", more, "tdmrep.json"))
    shown = f"tdmrep.json krant.nl: {reserved}"
    assert entries(listed, f"https://krant.nl{path}") == [[shown] if reserved else []]
    assert entries(listed, f"https://krant.nl{path}", is_tdm_stated=True) == [[]], "the page statement overrides it"


@pytest.mark.timeout(300)  # a pattern that tries each position for each * never ends
@pytest.mark.parametrize(
    ("location", "path", "is_reserved"),
    [
        ("/" + "*a" * 30 + "*b", "/" + "a" * 5000, False),
        ("/" + "*a" * 30 + "*b", "/" + "a" * 5000 + "bc", True),
        ("/" + "*a" * 30 + "*b$", "/" + "a" * 5000 + "bb", True),
        ("/*/a$", "/a/a", True),
        ("/*/a$", "/a", False),
        ("/a*a$", "/a", False),
        ("/*ab*b$", "/ab", False),
        ("/*", "/", True),
        ("/*%24", "/a$b", True),
        ("/a%24", "/a", False),
        ("/a%2Ab", "/a/b", False),
        ("/b", "/a/b", False),
        ("/*b/*a", "/a/b", False),
    ],
)
def test_wildcards_in_a_tdmrep_location_match(location: str, path: str, is_reserved: bool, tmp_path: Path) -> None:
    listed = collected(tmp_path, row("krant.nl", [{"location": location, "tdm-reservation": 1}], "tdmrep.json"))
    shown = f"tdmrep.json krant.nl: {location}"
    assert entries(listed, f"https://krant.nl{path}") == [[shown] if is_reserved else []]


@pytest.mark.parametrize(
    "content",
    ["[", {"tdm-reservation": 1}, [{"location": "/", "tdm-reservation": 2}], [{"tdm-reservation": 1}], [3], TDM[:1]],
)
def test_invalid_tdmrep_reserves_nothing(content: object, tmp_path: Path) -> None:
    assert collected(tmp_path, row("krant.nl", content, "tdmrep.json")).reservations == []


def test_urls_and_hosts_are_compared_as_in_browsers(tmp_path: Path) -> None:
    (made,) = collected(tmp_path, row("krant.nl", TDM, "tdmrep.json")).reservations
    listed = OptOut(reservations=[made.model_dump() | {"host": "KRANT.nl."}])
    reserved = ["tdmrep.json krant.nl: /"]
    assert entries(listed, "https://krant.nl", "krant.nl?a=1", "https://krant.nl#top") == [reserved] * 3


@pytest.mark.parametrize(
    ("rules", "reserved"),
    [("Disallow: /", True), ("Disallow: *.txt\nDisallow: *.html", True), ("Disallow: *.jpg\nDisallow: *.png", False)],
)
def test_ai_txt_reserves_file_types(rules: str, reserved: bool, tmp_path: Path) -> None:
    listed = collected(tmp_path, row("kunst.nl", f"# Spawning AI\nUser-Agent: *\n{rules}", "ai.txt"), unnamed=False)
    assert entries(listed, "https://kunst.nl/werk/1") == [["ai.txt kunst.nl: *"] if reserved else []]


def test_latest_server_response_decides(tmp_path: Path) -> None:
    closed = row("krant.nl", "User-agent: *\nDisallow: /")

    def is_reserved(*rows: dict[str, Any]) -> bool:
        return entries(collected(tmp_path, *rows), "https://krant.nl/a") != [[]]

    assert is_reserved(closed)
    assert is_reserved(closed, row("krant.nl", "", fetched="2024-04-01"))
    assert not is_reserved(row("krant.nl", "", fetched="2024-06-01T10:00:00Z"), closed)
    assert not is_reserved(closed, row("krant.nl", "", fetched="2024-06-01", status=404))
    assert is_reserved(closed, row("krant.nl", "", fetched="2024-06-01", status=503)), "it stated nothing"
    assert is_reserved(closed, row("krant.nl", "", fetched="2024-06-01", status=429)), "it stated nothing"
    assert is_reserved(closed, row("krant.nl", "", status=404)), "on the same day the file counts"


CLOSED = "User-agent: *\nDisallow: /"


@pytest.mark.parametrize(
    ("url", "body", "status"),
    [
        ("https://krant.nl/.well-known/ai.txt", "", 404),
        ("https://krant.nl/robots.txt", "<!DOCTYPE html><title>Niet gevonden</title>", 200),
        ("https://krant.nl/robots.txt", "\ufeff\n<!-- thema --><html>", 200),
        ("http://krant.nl:8080/robots.txt", "", 404),
        ("http://krant.nl:8080/ai.txt", "User-agent: *\nDisallow:", 200),
    ],
)
def test_reservation_of_one_file_is_kept_after_a_later_response_for_another(
    url: str, body: str, status: int, tmp_path: Path
) -> None:
    files = [row("krant.nl", CLOSED), row("krant.nl", CLOSED, "ai.txt")]
    later = {"url": url, "body": body, "status": status, "fetched": "2024-05-03"}
    assert collected(tmp_path, *files, later).reservations == collected(tmp_path, *files).reservations != []
    assert collected(tmp_path, later, *files).reservations == collected(tmp_path, *files).reservations


def test_http_and_https_are_one_url_and_their_rules_are_joined(tmp_path: Path) -> None:
    open_later = row("krant.nl", "", url="http://krant.nl:80/robots.txt?x=1", fetched="2024-05-03")
    assert collected(tmp_path, row("krant.nl", CLOSED), open_later).reservations == []
    places = [
        row("k.nl", CLOSED.replace("/", f"/{name}/"), file)
        for name, file in (("a", "ai.txt"), ("b", ".well-known/ai.txt"))
    ]
    listed = collected(tmp_path, *places)
    reserved = ["ai.txt k.nl: *"]
    assert entries(listed, "https://k.nl/a/1", "https://k.nl/b/1", "https://k.nl/c/1") == [reserved, reserved, []]
    copied = collected(
        tmp_path, row("k.nl", CLOSED, "ai.txt"), row("k.nl", CLOSED, ".well-known/ai.txt", fetched="2024-06")
    )
    assert [one.fetched for one in copied.reservations] == ["2024-06"]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2024-05-02T01:00:00Z", "2024-05-02 23:00"),
        ("2024-05-02T01:00:00+02:00", "2024-05-02T00:30:00Z"),
        ("2024-05-02", "2024-05-02T00:00:00Z"),
        ("2024-05-02T10:00:00Z", "2024-05-02T10:00:00.5Z"),
        ("2024-05", "2024-05-01"),
        (None, "2024"),
    ],
)
def test_timestamps_are_compared_in_any_format(earlier: str | None, later: str, tmp_path: Path) -> None:
    for first, second in ((CLOSED, ""), ("", CLOSED)):
        rows = [row("k.nl", first, fetched=earlier), row("k.nl", second, fetched=later)]
        assert bool(collected(tmp_path, *rows).reservations) is bool(collected(tmp_path, *rows[::-1]).reservations)
        assert bool(collected(tmp_path, *rows).reservations) is bool(second)


def test_only_decisive_rules_are_kept(tmp_path: Path) -> None:
    groups = [
        "Disallow: /voor",
        "User-agent: Googlebot\nUser-agent: GPTBot\nUser-agent: Bingbot\nDisallow: /a\nAllow: /a/b",
        "User-agent: Bingbot\nDisallow: /c",
        "User-agent: *\nDisallow: /d",
        "User-agent:\nDisallow: /e",
    ]
    (made,) = collected(tmp_path, row("k.nl", "\n\n".join(groups))).reservations
    assert made.rules.split("\n") == [
        *("User-agent: GPTBot", "Disallow: /a", "Allow: /a/b"),
        *("User-agent: *", "Disallow: /d"),
    ]
    assert made.agents == ["*", "GPTBot"]


def test_file_is_read_and_hashed_up_to_the_parser_limit(tmp_path: Path) -> None:
    long = f"{CLOSED}\n".ljust(MAXIMUM_BYTES, "#") + "\nUser-agent: GPTBot\nDisallow: /"
    (made,) = collected(tmp_path, row("k.nl", long)).reservations
    assert (made.agents, made.sha256) == (["*"], hashlib.sha256(long[:MAXIMUM_BYTES].encode()).hexdigest())
    path = tmp_path / "folder/k.nl/robots.txt"
    path.parent.mkdir(parents=True)
    path.write_text(long)
    assert collect_reservations([tmp_path / "folder"], fetched="2024-05-02").reservations == [made]


def test_list_reservations_are_kept_until_a_later_response(tmp_path: Path) -> None:
    before = collected(tmp_path, row("a.nl", CLOSED), row("b.nl", CLOSED), row("c.nl", CLOSED, fetched="2024-07-01"))
    own = tmp_path / "own.json"
    own.write_text(before.model_dump_json())
    now = [row("b.nl", "", fetched="2024-06-01"), row("c.nl", "", fetched="2024-06-01"), row("d.nl", CLOSED)]
    after = collected(tmp_path, *now, opt_out=own)
    assert [one.host for one in after.reservations] == ["a.nl", "c.nl", "d.nl"]
    assert (before.date, after.date) == ("2024-07-01", "2024-07-01")
    own.write_text(before.model_copy(update={"date": "2023"}).model_dump_json())
    assert collected(tmp_path, row("b.nl", "", fetched="2024-09-01"), opt_out=own).date == "2024-09-01"


def test_new_response_replaces_a_list_entry_unless_the_list_is_later(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    before = collected(tmp_path, row("a.nl", "User-agent: *\nDisallow: /prive"), agents=["GPTBot"])
    own.write_text(before.model_dump_json())
    everything = "User-agent: MijnBot\nDisallow: /"
    for fetched, is_new in ((None, True), ("2024-05-02", True), ("2024-05-03", True), ("2024-05-01", False)):
        captures = [row("a.nl", everything, fetched=fetched)]
        after = collected(tmp_path, *captures, agents=["GPTBot", "MijnBot"], opt_out=own)
        assert (after.reservations != before.reservations) == is_new
        assert entries(after, "https://a.nl/b") == [["robots.txt a.nl: MijnBot"] if is_new else []]


def test_agent_version_is_ignored(tmp_path: Path) -> None:
    listed = collected(tmp_path, row("a.nl", "User-agent: GPTBot/1.1\nDisallow: /"))
    assert entries(listed, "https://a.nl/b") == [["robots.txt a.nl: GPTBot"]]


def test_invalid_characters_are_replaced(tmp_path: Path) -> None:
    location = [{"location": "/\ud800", "tdm-reservation": 1}]
    listed = collected(
        tmp_path,
        row("k.nl", CLOSED, url="https://k.nl/robots.txt?\ud800", fetched="2024-05-02 \ud800"),
        row("k.nl", CLOSED, url="https://k\ud800.nl/robots.txt"),
        row("k.nl", location, "tdmrep.json"),
    )
    (tmp_path / "list.json").write_text(listed.model_dump_json())
    assert read_opt_out_list(tmp_path / "list.json") == listed and len(listed.reservations) == 2
    assert collected(tmp_path, row("k.nl", "[" * 100_000, "tdmrep.json")).reservations == []


def test_archives_parquet_and_folders_give_the_same_list(tmp_path: Path) -> None:
    rows = [row("a.nl", ROBOTS), row("b.nl", TDM, "tdmrep.json")]
    wanted = collected(tmp_path, *rows)
    table = pa.Table.from_pylist([one | {"body": one["body"].encode()} for one in rows])
    pq.write_table(table, tmp_path / "captures.parquet")
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=True)
    for one in [*rows, row("a.nl", "geen bestand", "index.html")]:
        headers = StatusAndHeaders("200 OK", [("Content-Type", "text/plain"), ("Content-Encoding", "gzip")], "HTTP/1.1")
        body = io.BytesIO(gzip.compress(one["body"].encode()))
        warc = writer.create_warc_record(
            one["url"], "response", payload=body, http_headers=headers, warc_headers_dict={"WARC-Date": "2024-05-02"}
        )
        writer.write_record(warc)
    headers = StatusAndHeaders("9" * 5000, [("Content-Type", "text/plain")], "HTTP/1.1")
    warc = writer.create_warc_record(rows[0]["url"], "response", payload=io.BytesIO(b""), http_headers=headers)
    warc.rec_headers.replace_header("WARC-Date", "ooit")
    writer.write_record(warc)
    (tmp_path / "captures.warc.gz").write_bytes(stream.getvalue())
    for one in rows:
        path = tmp_path / "folder" / one["url"].removeprefix("https://")
        path.parent.mkdir(parents=True)
        path.write_text(one["body"])
    assert collect_reservations([tmp_path / "captures.parquet"]) == wanted
    assert collect_reservations([tmp_path / "captures.warc.gz"]) == wanted
    assert collect_reservations([tmp_path / "folder"], fetched="2024-05-02") == wanted
    assert {one.fetched for one in collect_reservations([tmp_path / "folder"]).reservations} == {None}


def test_list_round_trips_and_is_published_without_rules(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("ander.nl\nid: 7\n")
    listed = collected(tmp_path, row("krant.nl", ROBOTS), opt_out=tmp_path / "own.txt")
    assert (listed.domains, listed.ids, listed.date) == (["ander.nl"], ["7"], "2024-05-02")
    (tmp_path / "list.json").write_text(listed.model_dump_json())
    assert read_opt_out_list(tmp_path / "list.json") == listed
    (published,) = publishable_list(listed)["reservations"]
    assert published.keys() == {"host", "file", "url", "sha256", "fetched", "agents"}


def test_list_is_written_to_a_file_that_the_run_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = row("b.nl", CLOSED), row("b.nl", CLOSED, url="b.nl:81/robots.txt")
    listed = collected(tmp_path, row("a.nl", ROBOTS), *twice)
    command = ["reservations", str(tmp_path / "captures.jsonl"), "--out"]
    assert main([*command, str(tmp_path / "list.txt")]) != 0
    assert "list.txt: the list is JSON: name a file that ends in .json" in capsys.readouterr().err
    assert not (tmp_path / "list.txt").exists()
    for name in ("list.json", "list.yaml", "list.yml"):
        assert main([*command, str(tmp_path / name)]) == 0
        assert capsys.readouterr().out == f"{tmp_path / name}: robots.txt of 2 hosts\n"
        assert read_opt_out_list(tmp_path / name) == listed
    own = [*command, str(tmp_path / "list.json"), "--opt-out", str(tmp_path / "list.yml")]
    assert main(own) == 0 and read_opt_out_list(tmp_path / "list.json") == listed


def test_documents_reserved_by_a_file_of_their_host_are_removed(tmp_path: Path, texts: dict[str, str]) -> None:
    source = Source(tmp_path / "source", {name: texts[name] for name in ("nl_water", "nl_fiets", "en_garden")})
    robots = "User-agent: CCBot\nDisallow: /nl_fiets\n"
    listed = collected(tmp_path, row("www.nl.nl", robots), row("www.elders.nl", robots))
    content = source.manifest(listed.model_dump_json())
    assert [one["host"] for one in content["opt_out"]["reservations"]] == ["www.elders.nl", "www.nl.nl"]
    unit = json.loads((tmp_path / "source/units/0.json").read_text())
    assert [one["host"] for one in unit["opt_out"]["reservations"]] == ["www.nl.nl"], "another path reads nothing"
    kept, removed = source.filter()
    assert {one["id"] for one in kept} == {"s/x.jsonl/nl_water", "s/x.jsonl/en_garden"}
    assert [(one["id"], one["reason"], one["value"]) for one in removed] == [
        ("s/x.jsonl/nl_fiets", "opt_out", "robots.txt www.nl.nl: CCBot")
    ]
    fields = {"host", "file", "agents", "rules"}
    assert [one.keys() for one in unit["opt_out"]["reservations"]] == [fields], "a new fetch filters nothing again"
    again = row("www.nl.nl", f"{robots}# later", url="http://www.nl.nl/robots.txt", fetched="2024-06-01")
    assert source.manifest(collected(tmp_path, again).model_dump_json())["units"] == content["units"]
    without = source.manifest(collected(tmp_path, row("www.elders.nl", robots)).model_dump_json())
    assert without["units"] == source.manifest(None)["units"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "a", r"captures are \.warc"),
        ("x.jsonl", "{", "line 1 is no JSON"),
        ("x.jsonl", "[" * 100_000, "line 1 is no JSON"),
        ("x.jsonl", '{"body": ""}', "line 1: a capture needs url and body"),
        ("x.jsonl", '{"url": "https://a.nl/robots.txt", "body": "", "status": "ok"}', "status is 'ok'"),
        ("x.jsonl", '{"url": "https://a.nl/robots.txt", "body": "", "status": "²"}', "status is '²'"),
        ("x.jsonl", '{"url": "https://a.nl/robots.txt", "body": "", "fetched": "mei"}', "fetched is 'mei'"),
        ("x.jsonl", '{"url": "https://a.nl/", "body": ""}', "no robots.txt, ai.txt or tdmrep.json"),
        ("x.parquet", "no", "no Parquet file"),
        ("x.warc", "no WARC at all", "no WARC file"),
    ],
)
def test_files_without_captures_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        collect_reservations([tmp_path / name])
    with pytest.raises(InputError, match="check the path"):
        collect_reservations([tmp_path / "missing.jsonl"])
    with pytest.raises(InputError, match="--fetched is 'mei'"):
        collect_reservations([tmp_path], fetched="mei")
