"""By what the time of each model is told, what is left out of it, and what others took: sentences for a person."""

from __future__ import annotations

from typing import Any

from pipeline.core.formatting import counted
from pipeline.plan.measured import interval_note, ratios
from pipeline.plan.published import alike
from pipeline.plan.run_time import obstacles
from pipeline.plan.settings import ForecastPlan, ModelPlan, PlatformPlan
from pipeline.plan.table import readable

LEFT_OUT = {
    "validation_seconds": "validations, for training.validation_tokens is not stated",
    "start_seconds": "starts of jobs, for the platform does not state job_start_seconds (from the start of a job to "
    "its first step: a finished job's log has both)",
    "queue_seconds": "waiting in the queue, for the platform does not state job_queue_seconds (sacct has Submit and "
    "Start of jobs of as many nodes)",
    "checkpoint_write_seconds": "the interval between checkpoints by Young and Daly, for the platform does not state "
    "storage_bytes_per_second (time dd of 10 GB with oflag=direct to its scratch)",
}
HIDDEN = "loading, and checkpoints written beside the training"


PRETRAINED = (
    "begins with weights that were trained before: its shape is theirs, and laws of trainings from the first token on "
    "tell neither its loss nor its rate"
)
EXPERTS = (
    "operations are those of the experts that a token visits, memory that of all; time and memory are those of tokens "
    "shared equally, which take longer and hold more where some experts are liked better; laws of models without "
    "experts tell neither its loss nor its rate"
)


def notes(
    model: ModelPlan, platform: PlatformPlan, planned: dict[str, Any], forecast: ForecastPlan | None = None
) -> list[str]:
    """Return what a reader must know of a model's time; `planned` is its entry in the plan."""
    began = [PRETRAINED] * model.pretrained + [EXPERTS] * bool(model.architecture.experts)
    found = obstacles(model, platform, planned["devices_used"])
    if planned["seconds"] is None:
        return [*began, f"no time: {'; '.join(found)}"]
    ends = interval_note(planned, ratios(forecast, platform, is_counted=not found))
    if found:
        told = f"time by the platform's model_flops_utilization {platform.model_flops_utilization:g}, steps alone"
        return [*began, f"{told}, for {'; '.join(found)}", ends, *_published(platform, planned)]
    rate = "at the platform's rate"
    if platform.failures_per_device_hour is None:
        rate = "as often as those of Llama 3 405B, for the platform does not state failures_per_device_hour"
    missing = [words for key, words in LEFT_OUT.items() if planned[key] is None]
    return [
        *began,
        f"time by operations, bytes and bandwidths; failures {rate}",
        ends,
        f"not in it: {'; '.join([HIDDEN, *missing])}",
        *_published(platform, planned),
    ]


def _published(platform: PlatformPlan, planned: dict[str, Any]) -> list[str]:
    """Return the line of published trainings."""
    least, most, own = (planned[key] for key in ("published_least_seconds", "published_most_seconds", "seconds"))
    trainings = [
        f"{one.name} {one.device_hours:,.0f} hours of {one.device} for {one.tokens:.3g} tokens, "
        f"{100 * one.utilization:.0f} % of the peak ({one.source})"
        for one in alike(planned["active_parameters"])
    ]
    took = " to ".join(dict.fromkeys(readable("seconds", value) for value in (least, most)))
    told = (
        f"published runs of this size took as much of their peak that this one would take {took} on "
        f"{counted(planned['devices_used'], 'device')} of {platform.name}: {'; '.join(trainings)}"
    )
    if own < least:
        told += f"; the plan is {most / own:.2g} times as fast as the slowest of them, and faster than all"
    return [told]
