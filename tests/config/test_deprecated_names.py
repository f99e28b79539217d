"""A deprecated key works, and the run shows the new spelling."""

import json
import re
from typing import Any

import pytest

from pipeline.config.deprecated_names import replace_deprecated_names
from pipeline.core.errors import InputError
from pipeline.corpus.settings import FilterSettings
from pipeline.pretrain.settings import SegmentSettings
from tests.conftest import Project

OLD = {"deduplication": {"buckets": 7, "hashes_per_bucket": 4, "ngram": 3}}
NEW = {"deduplication": {"bands": 7, "rows": 4, "ngram": 3}}


def test_deprecated_keys_are_renamed_at_every_level() -> None:
    raw = {"run": {"name": "x"}, "corpus": {"main": OLD, "laws": NEW, "plain": None}}
    content, sentences = replace_deprecated_names(raw)
    assert content == {"run": {"name": "x"}, "corpus": {"main": NEW, "laws": NEW, "plain": None}}
    assert sentences == [
        "configuration: corpus.main.deduplication.buckets is called bands now: write that, the next version refuses "
        "buckets",
        "configuration: corpus.main.deduplication.hashes_per_bucket is called rows now: write that, the next version "
        "refuses hashes_per_bucket",
    ]
    assert raw["corpus"]["main"] == OLD
    assert replace_deprecated_names({"corpus": {"main": NEW}}) == ({"corpus": {"main": NEW}}, [])


def test_british_spellings_of_keys_and_values_become_american() -> None:
    def written(basis: str, normalization: str, behavior: str) -> dict[str, Any]:
        rights = {"basis": basis, "holder": "Staat"}
        return {
            "sources": [{"name": "laws", "rights": rights}, {"name": "web", "rights": rights}, {"path": "x"}],
            "corpus": {"main": {normalization: {"white_space": "keep"}}},
            "experiments": {"e": {"vary": {f"corpus.{normalization}.punctuation": [True, False]}}},
            "disclosure": {"crawlers": [{"name": "Spin", behavior: "asks first"}]},
        }

    content, sentences = replace_deprecated_names(written("licence", "normalisation", "behaviour"))
    assert content == written("license", "normalization", "behavior")
    assert sentences == [
        "configuration: corpus.main.normalisation is called normalization now: write that, the next version refuses "
        "normalisation",
        "configuration: disclosure.crawlers.Spin.behaviour is called behavior now: write that, the next version "
        "refuses behaviour",
        "configuration: experiments.e.vary.corpus.normalisation.punctuation is called "
        "corpus.normalization.punctuation now: write that, the next version refuses corpus.normalisation.punctuation",
        "configuration: sources.laws.rights.basis: licence (and 1 more) is called license now: write that, the next "
        "version refuses licence",
    ]
    assert replace_deprecated_names(content) == (content, [])
    (content, sentences) = replace_deprecated_names({"disclosure": {"authorised_representative": "none"}})
    assert content == {"disclosure": {"authorized_representative": "none"}} and len(sentences) == 1


def test_renamed_keys_do_not_change_training_settings() -> None:
    """A finished training of the previous version is therefore kept."""
    schema = json.dumps(SegmentSettings.model_json_schema())
    assert '"learning_rate"' in schema
    assert not [name for name in ("normalization", "basis", "behavior") if f'"{name}"' in schema]


def test_filter_records_are_read_under_the_deprecated_key() -> None:
    settings = {"source": "s", "broken_share": 0.1, "languages": {}, "personal_data": {}}
    old, new = (
        FilterSettings.model_validate({**settings, key: {"white_space": "keep"}})
        for key in ("normalisation", "normalization")
    )
    assert old == new != FilterSettings.model_validate(settings)


def test_old_and_new_key_together_are_refused() -> None:
    both = {"corpus": {"main": {"deduplication": {"bands": 7, "buckets": 8}}}}
    with pytest.raises(InputError, match=r"\.buckets is the old name of corpus\.main\.deduplication\.bands"):
        replace_deprecated_names(both)


def test_run_with_a_deprecated_key_warns_and_reruns_nothing(project: Project) -> None:
    project.edit("config/micro.yaml", "main: {", "main: {deduplication: {buckets: 14, hashes_per_bucket: 8}, ")
    printed = project.run("--dry-run")
    assert len(re.findall(r"micro\.yaml, line \d+: corpus\.main\.deduplication\.buckets is called bands", printed)) == 1
    steps = re.findall(r"^([a-z]+\.[a-z_]+) +\d", printed, re.MULTILINE)
    assert "report.page" in steps  # it shows the configuration
    assert not [step for step in steps if step.startswith("corpus.")]
