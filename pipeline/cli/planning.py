"""What `polder plan` prints."""

from __future__ import annotations

from pathlib import Path

from pipeline.cli.parameters import print_json
from pipeline.config.configuration_file import load_configuration
from pipeline.core.errors import InputError
from pipeline.plan.estimate import estimate
from pipeline.plan.plan_tables import format_corpus_plan, format_notes_and_sizes, format_plan
from pipeline.plan.settings import EstimateSettings
from pipeline.slurm.corpus_plan import CorpusPlan
from pipeline.workflow.memory_plan import format_memory_plan
from pipeline.workflow.steps import step_settings


def print_plan(configuration: Path, data: str | None, *, as_json: bool) -> None:
    """Print compute, memory, time, energy, carbon and cost of a configuration, and the corpus: estimated.

    Raises:
        InputError: the configuration is missing or has a mistake.
    """
    config = load_configuration(configuration, **({"data": data} if data else {}))
    settings = step_settings(config, "plan.estimate", {})
    estimated = estimate(EstimateSettings.model_validate(settings.model_dump()))
    if as_json:
        print_json(estimated)
        return
    print("\n".join([format_plan(estimated), "", *format_notes_and_sizes(estimated), "", *format_memory_plan(config)]))
    try:
        lines = format_corpus_plan(CorpusPlan(config).plan())
    except InputError as error:  # models can be planned where the texts are not available
        lines = [f"cannot estimate the corpus: {error}"]
    print("\n".join(["", *lines]))
