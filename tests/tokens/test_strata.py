"""Token sets with strata by genre, license and numeric bins, and trainings that mix them."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.config.configuration import parse_configuration
from pipeline.core.batch_schedule import BatchSchedule
from pipeline.core.errors import InputError
from pipeline.corpus.documents import id_hash
from pipeline.tokens import index, shard
from pipeline.tokens.data_order import count_epochs
from pipeline.tokens.memory_mapped_shards import map_record_batches
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.settings import IndexSettings, Sampling, ShardSettings, Strata, bin_names
from pipeline.tokens.shard import assign_strata, group_condition, stratum_columns
from pipeline.tokens.token_reader import TokenReader
from pipeline.workflow.steps import step_settings

STRATA = Strata(genre=True, license=True, cluster_size=[2, 5])
GENRES = {"laws": "laws", "forum": "web"}
LICENSES = {"laws": "CC0-1.0", "forum": "MIT", "other": "CC-BY-4.0"}
SHARDS, STEPS, T, BATCH = 2, 40, 16, 4


def rows() -> list[dict[str, Any]]:
    chosen = random.Random(3)
    made = []
    for number in range(300):
        name = f"{chosen.choice(['laws', 'forum', 'other'])}/file.jsonl/{number}"
        made.append(
            {
                "id": name,
                "text": " ".join(chosen.choices(["dijk", "polder", "sluis", "molen"], k=chosen.randrange(5, 60))),
                "language": chosen.choice(["nl", "en"]),
                "language_score": 1.0,
                "source": name.partition("/")[0],
                "license": chosen.choice(["CC0-1.0", "MIT", None]),
                "cluster_size": chosen.choice([1, 1, 1, 2, 4, 5, 9]),
                "id_hash": id_hash(name),
            }
        )
    return made


def bin_of(copies: int) -> str:
    return "below 2" if copies < 2 else "from 2" if copies < 5 else "from 5"


@pytest.fixture(scope="module")
def stratified(
    small_batches: None, write: Callable[..., Path], tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("strata")
    made = rows()
    documents = [write(folder / f"{n}.parquet", made[n::3]) for n in range(3)]
    for split in ("train", "validation"):
        (folder / split).mkdir()
    for number in range(SHARDS):
        shard.run(
            ShardSettings(
                shard=number,
                shards=SHARDS,
                validation_fraction=0.2,
                strata=STRATA,
                genres=GENRES,
                licenses=LICENSES,
            ),
            tokenizer=tokenizer,
            documents=documents,
            train=folder / "train" / f"{number}.arrow",
            validation=folder / "validation" / f"{number}.arrow",
        )
    paths = {split: sorted((folder / split).iterdir()) for split in ("train", "validation")}
    index.run(IndexSettings(shards=SHARDS), **paths, index=folder / "index.json")
    return folder / "index.json"


def test_each_document_is_in_its_stratum_and_none_is_lost(stratified: Path) -> None:
    expected = {
        row["id"]: (row["source"], row["language"], GENRES.get(row["source"], "unknown"), license, copies)
        for row in rows()
        for license, copies in [(row["license"] or LICENSES[row["source"]], bin_of(row["cluster_size"]))]
    }
    results: dict[str, tuple[str, ...]] = {}
    for path in sorted(stratified.parent.glob("*/*.arrow")):
        for batch in map_record_batches(path)[1]:
            for row in batch.to_pylist():
                assert row["id"] not in results
                results[row["id"]] = tuple(
                    row[name] for name in ("source", "language", "genre", "license", "cluster_size")
                )
            assert len({tuple(row[name] for name in ("source", "genre", "license")) for row in batch.to_pylist()}) == 1
    assert results == expected
    content = json.loads(stratified.read_text())
    assert content["grouped_by"] == ["source", "language", "genre", "license", "cluster_size"]
    documents = Counter(
        {
            tuple(entry[name] for name in content["grouped_by"]): entry["documents"]
            for split in ("train", "validation")
            for entry in content[split]["groups"]
        }
    )
    total = Counter(expected.values())
    assert documents.keys() == total.keys()
    assert sum(content[split]["documents"] for split in ("train", "validation")) == 300


@pytest.mark.parametrize(
    "sampling",
    [
        {"by": "cluster_size", "epochs": {"from 2": 2, "from 5": 3}},
        {"by": "license", "weights": {"CC0-1.0": 3, "MIT": 1}},
        {"by": "genre", "epochs": {"web": 0}, "phases": [{"from_step": 20, "by": "language", "weights": {"nl": 1}}]},
    ],
    ids=["copies", "license", "genre and language"],
)
def test_training_reads_each_stratum_as_often_as_reported(stratified: Path, sampling: dict[str, Any]) -> None:
    reader = TokenReader(stratified, "train")
    chosen = Sampling.model_validate(sampling)
    sampler = Sampler(reader, T, BATCH, seed=3, sampling=chosen, steps=STEPS)
    place = reader.grouped_by.index(chosen.by)
    read: Counter[str] = Counter()
    for step in range(STEPS):
        for sequence in sampler.global_batch_sequence_numbers(step).tolist():
            stream, position = sampler.locate(sequence)
            names = {group[place] for group in sampler.groups[stream]}
            of_text = {bin_or_value(row["id"], chosen.by) for row in sampler.rows[stream].documents_in(position, T)}
            assert of_text <= names, "the tokens belong to the groups of the stream"
            sizes = Counter({group[place]: reader.groups[group] for group in sampler.groups[stream]})
            for name, size in sizes.items():
                read[name] += T * size / sizes.total()
    groups = json.loads(stratified.read_text())["train"]["groups"]
    held = Counter({name: 0 for name in {group[chosen.by] for group in groups}})
    for group in groups:
        held[group[chosen.by]] += group["tokens"]
    for name, times in count_epochs(groups, chosen, STEPS, BatchSchedule(T, BATCH), chosen.by).items():
        assert times == pytest.approx(read[name] / held[name], rel=0.2, abs=0.05)
    if chosen.by == "cluster_size":
        of_one = read["below 2"] / held["below 2"]
        assert read["from 5"] / held["from 5"] == pytest.approx(3 * of_one, rel=0.1)
    if chosen.by == "license":
        assert read["CC0-1.0"] == pytest.approx(3 * read["MIT"], rel=0.05)


def bin_or_value(name: str, key: str) -> str:
    row = next(row for row in rows() if row["id"] == name)
    if key == "genre":
        return GENRES.get(row["source"], "unknown")
    if key == "license":
        return str(row["license"] or LICENSES[row["source"]])
    return bin_of(row["cluster_size"]) if key == "cluster_size" else str(row[key])


def test_mixture_by_an_undeclared_stratum_is_refused(built: Path) -> None:
    with pytest.raises(InputError, match="the tokens have no stratum license: add it to the strata of the token set"):
        Sampler(TokenReader(built, "train"), T, BATCH, 1, Sampling(by="license", weights={"MIT": 1}))


numbers = st.floats(0.01, 0.99, allow_nan=False)


@example([0.25, 0.5], [0.25, 0.5, 0.1, None])
@example([0.01, 0.010000000000000002], [0.5])  # distinguished by their names as well
@given(st.lists(numbers, min_size=1, unique=True).map(sorted), st.lists(st.none() | numbers, min_size=1, max_size=30))
def test_each_number_is_in_one_bin(bounds: list[float], values: list[float | None]) -> None:

    strata = Strata(quality=bounds)
    columns = {"source": ["s"] * len(values), "language": ["nl"] * len(values)}
    batch = pa.record_batch({**columns, "quality": pa.array([*values], pa.float64())})
    assert stratum_columns(strata) == ["source", "language", "quality"]
    assigned = assign_strata(batch, strata, {}, {}).to_pylist()
    for number, (value, group) in enumerate(zip(values, assigned, strict=True)):
        least = [bound for bound in bounds if value is not None and bound <= value]
        expected = "unknown" if value is None else f"from {least[-1]}" if least else f"below {bounds[0]}"
        assert group["quality"] == expected
        inside = [row for row, of in enumerate(assigned) if of == group]
        assert batch.filter(group_condition(group, strata, {})).num_rows == len(inside), f"number {number}"
    assert len({*bin_names(bounds)}) == len(bounds) + 1


def test_document_without_a_license_is_in_the_stratum_of_its_source_license() -> None:
    strata = Strata(license=True)
    columns = {"source": ["s", "s", "s", "t"], "language": ["nl"] * 4, "license": [None, "MIT", "CC0-1.0", "MIT"]}
    batch, licenses = pa.record_batch({**columns}), {"s": "MIT"}  # t has only documents with their own license
    assigned = assign_strata(batch, strata, {}, licenses).to_pylist()
    assert [row["license"] for row in assigned] == ["MIT", "MIT", "CC0-1.0", "MIT"]
    assert [batch.filter(group_condition(group, strata, licenses)).num_rows for group in assigned] == [2, 2, 1, 1]


def test_bounds_must_increase() -> None:
    for bounds in ([5, 2], [2, 2]):
        with pytest.raises(ValidationError, match="bounds must ascend"):
            Strata(cluster_size=bounds)
    with pytest.raises(ValidationError, match="cluster_size"):
        Strata(cluster_size=[1])


def micro(**changes: Any) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    raw["tokens"] = {"main": {**raw.get("tokens", {}).get("main", {}), "strata": changes.pop("strata", {})}}
    raw["models"]["base"]["training"]["sampling"] = changes["sampling"]
    return raw


RAW = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))


def test_configuration_checks_stratum_names() -> None:
    sampling = {"by": "cluster_size", "epochs": {"from 2": 3}}
    with pytest.raises(InputError, match=r"by cluster_size needs tokens\.main\.strata with cluster_size"):
        parse_configuration(micro(sampling=sampling))
    parse_configuration(micro(strata={"cluster_size": [2]}, sampling=sampling))
    with pytest.raises(InputError, match="no cluster_size 'from 2': did you mean 'from 3'"):
        parse_configuration(micro(strata={"cluster_size": [3]}, sampling=sampling))
    with pytest.raises(InputError, match=r"tokens\.main\.strata\.quality: documents of corpus main have none"):
        parse_configuration(micro(strata={"quality": [0.5]}, sampling={}))
    config = parse_configuration(micro(strata={"license": True}, sampling={"by": "license", "weights": {"CC0-1.0": 1}}))
    shard_settings: Any = step_settings(config, "tokens.shard", {"tokens": "main", "shard": "0"})
    assert shard_settings.strata == Strata(license=True)
    assert shard_settings.genres == {}, "the step gets only what it reads"
    assert shard_settings.licenses == dict.fromkeys(("nl_brieven", "nl_gids", "en_guide"), "CC0-1.0")
    plain: Any = step_settings(parse_configuration(RAW), "tokens.shard", {"tokens": "main", "shard": "0"})
    assert plain.licenses == {}, "nor a license without a stratum"


def test_shards_without_strata_have_source_and_language(built: Path) -> None:
    assert TokenReader(built, "train").grouped_by == ["source", "language"]
    assert np.all([len(group) == 2 for group in TokenReader(built, "train").groups])


def test_quality_can_be_the_score_of_a_classifier(tmp_path: Path) -> None:
    strata = Strata(quality=[2.5, 4.0], quality_from="edu")
    values = [-1.0, 2.5, 3.9, 4.0, None]
    batch = pa.record_batch({"source": ["s"] * 5, "language": ["nl"] * 5, "edu": values, "quality": [0.1] * 5})
    assert stratum_columns(strata) == ["source", "language", "edu"]
    assigned = assign_strata(batch, strata, {}, {}).to_pylist()
    assert [row["quality"] for row in assigned] == ["below 2.5", "from 2.5", "from 2.5", "from 4", "unknown"]
    assert [batch.filter(group_condition(group, strata, {})).num_rows for group in assigned] == [1, 2, 2, 1, 1]
    assert Strata(quality=[0.5]).model_dump() == {**Strata().model_dump(), "quality": [0.5]}
    assert "quality_from" not in Strata().model_dump() and strata.list_stratification_keys() == ["quality"]
    raw = micro(strata=strata.model_dump(), sampling={"by": "quality", "epochs": {"from 4": 2}})
    with pytest.raises(InputError, match=r"tokens\.main\.strata\.quality_from: corpus main has no classifier 'edu'"):
        parse_configuration(raw)
    model = {"path": "edu", "sha256": "0" * 64, "license": "CC0-1.0"}
    raw["corpus"]["main"] |= {"classifiers": {"edu": model}}
    assert parse_configuration(raw).tokens["main"].strata == strata
    with pytest.raises(InputError, match="bounds of the quality must be between 0 and 1"):
        parse_configuration(micro(strata={"quality": [0.5, 1.0]}, sampling={}))
