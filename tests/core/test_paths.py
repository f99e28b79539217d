"""Long lists of numbered files are compressed and expanded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.job_command_lines import compress_numbered_paths, expand_numbered_path

PATHS = st.builds(
    "{}/{}.{}{}".format,
    st.sampled_from(["run/filtered", "run/2/final"]),
    st.sampled_from(["nl_laws", "en-7"]),
    st.integers(0, 12),
    st.sampled_from([".parquet", ".json", ""]),
)


def test_consecutive_units_are_compressed_to_one_name() -> None:
    units = [f"run/filtered/nl_laws.{unit}.parquet" for unit in range(10_000)]
    assert compress_numbered_paths(units) == ["run/filtered/nl_laws.{0..9999}.parquet"]


def test_gap_other_name_or_step_back_starts_a_new_name() -> None:
    assert compress_numbered_paths(["a/0", "a/1", "a/3", "b/4", "b/5", "b/5", "a/01", "index.json"]) == [
        "a/{0..1}",
        "a/3",
        "b/{4..5}",
        "b/5",
        "a/01",
        "index.json",
    ]


@given(st.lists(PATHS))
def test_compressed_paths_expand_to_the_same_list(paths: list[str]) -> None:
    assert [path for name in compress_numbered_paths(paths) for path in expand_numbered_path(name)] == paths
