"""Comparison reports every difference in a record, and lists the fields that always differ as not compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.cli.application import main
from pipeline.core.archived_run_files import FileStore
from pipeline.core.errors import InputError
from pipeline.provenance.compare_runs import compare_runs, summarize_differences
from tests.stored import edit_record, read_record

SAME = "Settings, code, environment, data, counts, results and energy are the same."


def edit(run: Path, name: str, **changes: Any) -> None:
    for file in FileStore(run).find_all(layout.RECORD, job=name.removesuffix(".json")):
        edit_record(run, file.stem, **changes)


def test_times_hosts_and_attempts_are_listed_but_not_differences(
    build_run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = build_run("a").folder, build_run("b").folder
    assert main(["compare", str(a), str(b)]) == 0
    assert capsys.readouterr().out == f"{SAME}\n"
    edit(b, "*.json", host="node2", started="2027", wall_seconds=1.0, slurm={"slurm_job_id": "7"})
    runs = compare_runs(a, b)
    assert runs.differences == []
    assert runs.notes == ["not compared, though it differs: host; slurm; started; wall_seconds"]
    assert main(["compare", str(a), str(b)]) == 0


def test_changed_settings_code_environment_data_and_results_are_listed_by_step(build_run: Callable[..., Any]) -> None:
    a = build_run("a").folder
    b = build_run(
        "b",
        loss=4.0,
        settings={"seed": 43, "optimizer": {"learning_rate": 0.001}},
        code_version="new",
        environment_file=None,  # like records of earlier versions
        environment={"python": "3.12.1", "lock": "cpu", "packages": {"pyarrow": "26.0.1"}},
        launch="srun",
    ).folder
    runs = compare_runs(a, b)
    lines = runs.differences
    text = "\n".join(lines[lines.index("pretrain.segment") + 1 : lines.index("results")])
    assert "settings seed: 42 → 43  [model=base, step=10]" in text
    assert "settings optimizer.learning_rate: nothing → 0.001" in text
    assert '→ "new"' in text
    assert 'environment python: "3.11.7" → "3.12.1"' in text
    assert 'launch: null → "srun"' in text
    assert "output models/base/milestones/10/model.safetensors" in text
    results = lines[lines.index("results") + 1 :]
    assert "  base/last loss: 3.5 → 4.0" in results
    assert "  base/10/blimp_nl/nl/acc: 0.286 → 0.25" in results
    assert "corpus.filter" not in lines
    assert list(runs.code) == ["pretrain.segment"]


def test_difference_shared_by_jobs_is_listed_once(build_run: Callable[..., Any]) -> None:
    a, b = build_run("a").folder, build_run("b").folder
    edit(b, "corpus.filter.*.json", settings={"seed": 7})
    lines = [line for line in compare_runs(a, b).differences if "settings seed" in line]
    assert len(lines) == 1
    assert "source=laws" in lines[0] and "source=wiki" in lines[0]


def test_commit_of_all_jobs_is_listed_once_with_the_number_of_the_others(build_run: Callable[..., Any]) -> None:
    a, b = build_run("a").folder, build_run("b").folder
    edit(b, "*.json", git={"commit": "f" * 40, "dirty": False})
    jobs = len(list(FileStore(b).find_all(layout.RECORD)))
    (line,) = [line for line in compare_runs(a, b).differences if "git.commit" in line]
    assert jobs > 2 and line.endswith(f" and {jobs - 1} more]")


def test_job_that_exists_in_one_run_is_reported(build_run: Callable[..., Any]) -> None:
    a, b = build_run("a"), build_run("b")
    b.job("tokens.shard", {"tokens": "main", "shard": "1"}, [], {"tokens/main/train/1.arrow": b"x"})
    assert compare_runs(a.folder, b.folder).differences == [
        "tokens.shard",
        f"  only in {b.folder}  [shard=1, tokens=main]",
    ]
    assert main(["compare", str(a.folder), str(b.folder)]) == 1


def test_emptied_count_is_reported(build_run: Callable[..., Any]) -> None:
    a = build_run("a", counts={"tokens": 1024, "tokens_per_second": 3.5}).folder
    b = build_run("b", counts={"tokens": 0, "tokens_per_second": 7.5}).folder
    runs = compare_runs(a, b)
    assert runs.differences == ["pretrain.segment", "  counts tokens: 1024 → 0  [model=base, step=10]"]
    assert runs.notes == [
        "not compared, though it differs: pretrain.segment counts tokens_per_second; the bytes of records"
    ]
    edit(b, "pretrain.segment.*.json", counts={})
    assert "  counts tokens: 1024 → nothing  [model=base, step=10]" in compare_runs(a, b).differences


def test_energies_differ_if_their_intervals_do_not_overlap(build_run: Callable[..., Any]) -> None:
    a, b = build_run("a").folder, build_run("b").folder
    path = b / "report/energy.json"
    accounting = json.loads(path.read_text())
    accounting["total"] = {key: x * 1.1 if isinstance(x, float) else x for key, x in accounting["total"].items()}
    path.write_text(json.dumps(accounting))
    runs = compare_runs(a, b)
    assert runs.differences == [] and "their 95 % intervals overlap, so no difference is shown" in runs.notes[0]
    accounting["total"] = {key: x * 70 if isinstance(x, float) else x for key, x in accounting["total"].items()}
    path.write_text(json.dumps(accounting))
    (title, line) = compare_runs(a, b).differences
    assert title == "energy" and line.startswith("  total: ")
    assert line.endswith("their 95 % intervals do not overlap") and "80 % measured, 20 % estimated" in line
    accounting["steps"] = {"corpus.filter": accounting["total"]}
    path.write_text(json.dumps(accounting))
    assert compare_runs(a, b).differences[-1].startswith("  corpus.filter: not measured → "), "one run has none"
    path.unlink()
    assert compare_runs(a, b).differences == ["energy", "  only the first run has an account (report/energy.json)"]


def test_command_is_compared_without_its_launch_and_the_name_of_the_run(build_run: Callable[..., Any]) -> None:
    def build(name: str, launch: str, *more: str, operation: str = '{"workers": 1}') -> Path:
        record = f"results/{name}/provenance/records/x.json"
        words = ["srun", "python", f"--launch={launch}", "--record", record, "--operation", operation]
        words += [f"results/{name}/a", f"private/{name}/b", "--settings", "sha256:0", *more]
        run: Path = build_run(name, command=words, launch=launch, operation=json.loads(operation)).folder
        return run

    a, b = build("a", "torchrun"), build("b", "mpirun")
    job = "[model=base, step=10]"
    assert compare_runs(a, b).differences == ["pretrain.segment", f'  launch: "torchrun" → "mpirun"  {job}']
    c = build("c", "torchrun", "--more", operation='{"workers":  1}')
    differences = ["pretrain.segment", f'  command 11: nothing → "--more"  {job}']
    assert compare_runs(a, c).differences == differences
    edit(c, "pretrain.segment.*.json", operation={"workers": 2})
    lines = compare_runs(a, c).differences
    assert f'  command 6: "<operation>" → "{{\\"workers\\":  1}}"  {job}' in lines
    assert f"  operation workers: 1 → 2  {job}" in lines
    command = read_record(build_run("d").folder, "pretrain.segment.base.10")["command"]
    command[command.index("--settings") + 1] = '{"seed": 43}'
    e = build_run("e", settings={"seed": 43}, command=command).folder
    differences = ["pretrain.segment", f"  settings seed: 42 → 43  {job}"]
    assert compare_runs(a.with_name("d"), e).differences == differences, "and not its digest in the command"


def test_order_of_the_files_of_a_job_is_compared(build_run: Callable[..., Any]) -> None:
    a, b = build_run("a").folder, build_run("b").folder
    for order, name in ((-1, "pretrain.export.base"), (1, "tokens.shard.main.0")):
        record = read_record(b, name)
        edit(b, name, inputs=record["inputs"][::order])
    assert compare_runs(a, b).differences == ["pretrain.export", "  the order of the inputs  [model=base]"]


def test_broken_files_of_a_run_are_refused_and_no_energy_is_noted(build_run: Callable[..., Any]) -> None:
    a, b = build_run("a").folder, build_run("b").folder
    for folder in (a, b):
        (folder / layout.ENERGY_ACCOUNT).unlink()
    runs = compare_runs(a, b)
    assert runs.differences == []
    assert runs.notes[0] == "energy: not compared, for neither run has an account (report/energy.json)"
    metrics = b / "models/base/metrics.jsonl"
    metrics.write_text('{"step": 10, "loss"')
    with pytest.raises(InputError, match=r"models/base/metrics\.jsonl is cut off or broken: make it again"):
        compare_runs(a, b)
    metrics.write_text("{}\n")
    (b / "evaluation/base/10/results.json").write_text("{")
    with pytest.raises(InputError, match=r"results\.json is not valid JSON: run `polder verify` on its run"):
        compare_runs(a, b)


def test_configuration_snapshots_are_compared_once(build_run: Callable[..., Any]) -> None:
    folders = []
    for name, seed in (("a", 1), ("b", 2)):
        folder = build_run(name).folder
        (folder / "provenance/frozen").mkdir(parents=True)
        (folder / "provenance/frozen/1.json").write_text(json.dumps({"configuration": {"run": {"seed": seed}}}))
        edit(folder, "*.json", frozen={"path": "provenance/frozen/1.json", "sha256": str(seed)})
        folders.append(folder)
    lines = compare_runs(*folders).differences
    assert lines[:2] == ["the start of the runs", "  configuration run.seed: 1 → 2"]
    assert len(lines) == 3 and lines[2].startswith('  frozen.sha256: "1" → "2"  [')


def test_conclusion_is_first_and_many_differences_are_counted_by_kind(
    build_run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    a = build_run("a").folder
    b = build_run("b", loss=4.0, settings={f"key{number}": number for number in range(40)}).folder
    assert main(["compare", str(a), str(b)]) == 1
    conclusion, *lines = capsys.readouterr().out.splitlines()
    assert conclusion == "The runs differ in the records of 3 steps, results."
    assert ["difference", "lines", "in"] in map(str.split, lines) and len(lines) < 10
    (settings,) = (line.split() for line in lines if line.startswith("settings"))
    differences = compare_runs(a, b).differences
    assert settings == ["settings", str(sum(line.startswith("  settings") for line in differences)), "pretrain.segment"]
    assert lines[-1] == f"Every difference: polder compare {a} {b} --all"
    assert main(["compare", str(a), str(b), "--all"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == conclusion and [line for line in shown if line in differences] == differences


def test_few_differences_are_listed_below_the_conclusion() -> None:
    changed = [f"  configuration run.key{number}: 1 → 2" for number in range(31)]
    few = ["the start of the runs", *changed[:30]]
    assert summarize_differences(few) == ["The runs differ in 30 keys of the configuration.", *few]
    many = summarize_differences(["the start of the runs", *changed, "energy", "  total: 1 J → 2 J"])
    assert many[:31] == ["The runs differ in 31 keys of the configuration, energy.", *changed[:30]]
    assert many[31] == "  and 1 more keys"
    assert many[33].split() == ["configuration", "31", "the", "start", "of", "the", "runs"]
    steps = [line for step in "abcde" for line in (step, "  only in x  [unit=0]")]
    assert (
        summarize_differences([*steps, "energy", *["  e: 1"] * 30])[-1] == "jobs of one run  5      a, b, c and 2 more"
    )


def test_kinds_of_many_differences_are_sorted_by_their_number() -> None:
    lines = summarize_differences(["a", "  counts x: 1 → 2", *["  settings y: 1 → 2"] * 31])
    assert [line.split() for line in lines[1:]] == [
        ["difference", "lines", "in"],
        ["settings", "31", "a"],
        ["counts", "1", "a"],
    ]


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each leaf value in a record."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    results = [*items]
    for key, item in results:
        yield from leaves(item, (*way, key))
    if not results:
        yield way


def change(content: Any, way: tuple[Any, ...]) -> None:
    """Change the value at the end of a path into another one of its kind."""
    for key in way[:-1]:
        content = content[key]
    value = content[way[-1]]
    kinds: dict[type, Any] = {bool: True, int: 1, float: 0.5, str: "other", list: ["x"], dict: {"x": 1}}
    changed = {**kinds, bool: not value}.get(type(value), "other")
    content[way[-1]] = value + changed if isinstance(value, int | float | str) and type(value) is not bool else changed


def test_every_record_field_difference_is_reported(build_run: Callable[..., Any]) -> None:
    a, b = (
        build_run("a", counts={"tokens": 5, "skips": []}).folder,
        build_run("b", counts={"tokens": 5, "skips": []}).folder,
    )
    assert compare_runs(a, b).differences == compare_runs(a, b).notes == []
    tried = 0
    for path in sorted((b / "provenance/records").glob("*.json")):
        original = path.read_text()
        record = json.loads(original)
        for way in leaves(record):
            changed = json.loads(original)
            change(changed, way)
            assert changed != record
            path.write_text(json.dumps(changed))
            try:
                runs = compare_runs(a, b)
            except InputError:  # an unknown value is reported too
                continue
            free = {"started", "ended", "wall_seconds", "cpu_seconds", "peak_memory_bytes", "host", "slurm", "attempt"}
            timed = way[0] in free
            if way[0] in ("inputs", "outputs") and way[-1] in ("sha256", "bytes"):
                file = record[way[0]][way[1]]["path"]
                tells_times = way[0] == "outputs" and record["step"] in ("report.page", "provenance.crate")
                timed = (
                    tells_times
                    or file.endswith("metrics.jsonl")
                    or file.startswith(("provenance/records/", "provenance/archives/"))
                )
            assert runs.differences or (timed and runs.notes), f"{path.name}: {way} difference not reported"
            tried += 1
        for key in record:  # and a removed field, unless each record has it
            without = {name: value for name, value in record.items() if name != key}
            path.write_text(json.dumps(without))
            if key in ("environment_file", "git", "launch", "counts", "frozen", "operation"):
                assert compare_runs(a, b).differences, f"{path.name}: {key} missing field not reported"
        path.write_text(json.dumps({**record, "a later field": 1}))
        assert any("a later field" in line for line in compare_runs(a, b).differences)
        path.write_text(original)
    assert tried > 300
