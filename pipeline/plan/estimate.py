"""Run the step `plan estimate`: compute, memory, time, energy, carbon and cost of every model before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.energy.settings import JOULES_PER_KWH, carbon_grams
from pipeline.model.size_and_cost import active_parameter_count, parameter_count, training_flops
from pipeline.plan import scaling_laws, training_cost_formulas
from pipeline.plan.alternative_models import advise_shapes, plan_model_sizes
from pipeline.plan.settings import EnergyPlan, EstimateSettings, ModelPlan, PlatformPlan
from pipeline.plan.sharding_strategy_definitions import hybrid_group_size
from pipeline.plan.time_and_energy_forecast import FORMULAS as INTERVAL
from pipeline.plan.time_and_energy_forecast import add_time_interval, forecast_costs, list_time_notes
from pipeline.plan.training_time import FORMULAS as RUN_TIME
from pipeline.plan.training_time import estimate_training_time

FORMULAS = {
    "parameters": "exact, from the shape: embeddings, blocks, norms, output",
    "active_parameters": "the parameters that one token uses: with experts those that it visits, otherwise all",
    "tokens": "steps x batch_size x sequence_length, stage by stage of a ramp; a branch counts its own steps",
    "training_flops_6nd": "6 x active parameters x tokens (Kaplan et al. 2020)",
    "training_flops_8nd": "8 x active parameters x tokens, with full recomputation (Narayanan et al. 2021)",
    "model_flops": "tokens x (6 x multiplied parameters + 12 x layers x sequence_length x H) with H "
    "= heads x head dimension (Chowdhery et al. 2022)",
    "general_purpose_share_6nd": "training_flops_6nd, of a branch with the steps before it, / 1e23, the indicative "
    "criterion for general-purpose models",
    "general_purpose_share_8nd": "training_flops_8nd likewise / 1e23",
    "devices_used": "min(devices x nodes, batch_size / micro_batch_size x tensor x pipeline x context): "
    "other devices are idle",
    "tensor_parallel_degrees": "divisors of heads up to 8",
    "model_state_bytes_per_device": "parameters of the fullest pipeline process / tensor, with undivided key and value "
    "matrices where tensor does not divide their heads, x (weights + gradients + optimizer bytes, each / devices that "
    "share it, 0 in main memory) (Rajbhandari et al. 2020)",
    "gathered_bytes_per_device": "of a strategy that shards weights, in their precision / tensor: embedding, output, 2 "
    "blocks with 1 / expert of their experts (Zhao et al. 2023); of a pipeline all of the fullest process",
    "activation_bytes_per_device": "micro_batch_size x sequence_length / (tensor x context) x (layers x (4 D + 2 H + "
    "2 K + 4 F) + 3 D elements) + fp32 logits of a sixteenth of the tokens, at least 2,048, + the output weight's fp32 "
    "gradient in bf16; with tensor > 1 4 D + 2 D x tensor of a block, 2 D of the output, 12 x tensor bytes of a logit "
    "(after Korthikanti et al. 2022); K the width of the least multiple of the key-value heads that tensor x the "
    "common divisor of context and heads / tensor divides, x the rest of context; of a pipeline the layers of all "
    "micro-batches in flight; without flash_attention also (layers + 2) x heads x sequence_length fp32 "
    "scores of a token",
    "activation_bytes_with_recomputation": "the same with one block in full and D elements of every other block",
    "checkpoint_bytes": "parameters x (16 of each milestone: weights, Adam's moments and the weights for Transformers; "
    "4 of the final model; 12 of each of keep_checkpoints + 1 recovery checkpoints), without those of keep_every",
    "memory_fits": "model state + gathered weights + activations <= memory_bytes_per_device",
    "memory_fits_with_recomputation": "the same with activation_bytes_with_recomputation",
    **RUN_TIME,
    **INTERVAL,
    "seconds_6nd": "training_flops_6nd / (devices_used x peak_flops_per_second x utilization_share)",
    "seconds_8nd": "training_flops_8nd / (devices_used x peak_flops_per_second x utilization_share)",
    "device_hours": "seconds x devices_used / 3600",
    "billed_core_hours": "seconds x cores of the smallest allocations that hold devices_used with their cores / 3600",
    "billed_gpu_hours": "seconds x GPUs of the same allocations / 3600",
    "energy_joules": "seconds x devices_used x device_power_watts",
    "facility_energy_joules": "energy_joules x pue",
    "carbon_grams": "energy_joules / 3.6e6 x pue x carbon_intensity_grams_per_kwh (Patterson et al. 2021)",
    "water_liters": "energy_joules / 3.6e6 x water_liters_per_kwh of the site",
    "cost_euros": "device_hours x price_euros_per_device_hour",
    **scaling_laws.FORMULAS,
}
CONSUMPTION_KEYS = (
    *("seconds", "device_hours", "billed_core_hours", "billed_gpu_hours"),
    *("energy_joules", "facility_energy_joules", "carbon_grams", "water_liters", "cost_euros"),
)
TOTAL_KEYS = ("tokens", "model_flops", "checkpoint_bytes", *CONSUMPTION_KEYS)
MOST_NODES = 4  # times as many as planned are the most of `scale_over_nodes`


def run(settings: EstimateSettings, *, plan: Path) -> dict[str, Any]:
    """Write plan.json and return the number of models planned."""
    plan.write_text(json.dumps(estimate(settings), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"models": len(settings.models)}


def estimate(settings: EstimateSettings) -> dict[str, Any]:
    """Return the plan: `models` and `totals` hold estimates, each by the formula of the same name in `formulas`.

    A value is None where the platform does not state a figure that it needs, and `forecast` where the configuration
    names no calibration runs. `not_run` has the cells of experiments that do not fit; totals exclude them.
    """
    platform = settings.platform
    models = {
        name: add_time_interval(estimate_model(model, platform, settings.energy), model, platform, settings.forecast)
        for name, model in sorted(settings.models.items())
    }
    totals: dict[str, float | None] = {}
    for key in TOTAL_KEYS:
        values = [model[key] for model in models.values()]
        totals[key] = None if None in values else sum(values)
    return {
        "label": "estimated",
        "formulas": FORMULAS,
        "platform": platform.model_dump(),
        "energy": settings.energy.model_dump(),
        "models": models,
        "totals": totals,
        "notes": {
            name: list_time_notes(settings.models[name], platform, model, settings.forecast)
            for name, model in models.items()
        },
        "advice": {
            name: [] if settings.models[name].pretrained else advise_shapes(settings.models[name], platform, model)
            for name, model in models.items()
        },
        "sizes": plan_model_sizes(lambda model: estimate_model(model, platform, settings.energy), platform),
        "scaling": {
            name: scale_over_nodes(model, platform, settings.energy) for name, model in settings.models.items()
        },
        "not_run": settings.not_run,
        "forecast": settings.forecast and forecast_costs(settings.forecast, platform.name),
    }


def scale_over_nodes(model: ModelPlan, platform: PlatformPlan, energy: EnergyPlan) -> list[dict[str, Any]]:
    """Return the time and the cost of a training on fewer and more nodes, with the same global batch.

    A row has `nodes`, `devices`, `tokens_per_second_per_device` and the keys of CONSUMPTION_KEYS. Numbers of nodes that
    the batch does not divide over, on which the model does not fit, or without a known time have none.
    """
    mesh, most = model.training.mesh, MOST_NODES * platform.nodes
    fits = "memory_fits_with_recomputation" if model.training.recomputation == "full" else "memory_fits"
    numbers = {2**power for power in range(most.bit_length()) if 2**power <= most}
    numbers |= {platform.nodes * number for number in range(1, MOST_NODES + 1)}
    numbers |= {platform.nodes // number for number in (2, 4) if platform.nodes % number == 0}
    rows = []
    for nodes in sorted(numbers):
        devices = nodes * platform.devices
        parts, rest = divmod(devices, mesh.tensor * mesh.pipeline * mesh.context)
        if rest or not parts or model.training.batch_size % (parts * model.training.micro_batch_size):
            continue
        planned = estimate_model(model, platform.model_copy(update={"nodes": nodes}), energy)
        if planned["seconds"] is not None and planned[fits] is not False:
            keys = ("tokens_per_second_per_device", *CONSUMPTION_KEYS)
            rows.append({"nodes": nodes, "devices": devices, **{key: planned[key] for key in keys}})
    return rows


def estimate_model(model: ModelPlan, platform: PlatformPlan, energy: EnergyPlan) -> dict[str, Any]:
    """Return a model's entry of the plan, without the interval of its time."""
    training, architecture = model.training, model.architecture
    parameters, active = (of(architecture, model.vocabulary_size) for of in (parameter_count, active_parameter_count))
    seen = training.batch_schedule.count_tokens(0, training.steps)  # a branch's base with it
    tokens = training.batch_schedule.count_tokens(training.first_step, training.steps)
    mesh = training.mesh
    matrices = mesh.tensor * mesh.pipeline
    together = matrices * mesh.context
    devices = min(
        platform.devices * platform.nodes, max(training.batch_size // training.micro_batch_size, 1) * together
    )
    sharing = max(devices // matrices, 1)
    flops = {
        "training_flops_6nd": training_cost_formulas.training_flops(active, tokens),
        "training_flops_8nd": training_cost_formulas.training_flops(active, tokens, recomputation=True),
        "model_flops": training_flops(
            architecture, model.vocabulary_size, training.batch_schedule, training.first_step, training.steps
        ),
    }
    kept, recomputed = (
        training_cost_formulas.device_bytes(
            architecture,
            model.vocabulary_size,
            training,
            devices=sharing,
            node=mesh.shard or hybrid_group_size(sharing, platform.devices, mesh.tensor),
            recomputation=recomputation,
        )
        for recomputation in (False, True)
    )
    memory = platform.memory_bytes_per_device
    return {
        "parameters": parameters,
        "active_parameters": active,
        "tokens": tokens,
        **flops,
        "general_purpose_share_6nd": training_cost_formulas.training_flops(active, seen)
        / training_cost_formulas.GENERAL_PURPOSE_FLOPS,
        "general_purpose_share_8nd": training_cost_formulas.training_flops(active, seen, recomputation=True)
        / training_cost_formulas.GENERAL_PURPOSE_FLOPS,
        "devices_used": devices,
        "tensor_parallel_degrees": training_cost_formulas.tensor_parallel_degrees(architecture),
        "model_state_bytes_per_device": round(kept.state),
        "gathered_bytes_per_device": round(kept.gathered),
        "activation_bytes_per_device": round(kept.activations),
        "activation_bytes_with_recomputation": round(recomputed.activations),
        "checkpoint_bytes": parameters * (16 * training.milestone_count + 4 + 12 * (training.keep_checkpoints + 1)),
        "memory_fits": None if memory is None else sum(kept) <= memory,
        "memory_fits_with_recomputation": None if memory is None else sum(recomputed) <= memory,
        **_estimate_consumption(model, flops, devices, platform, energy),
        **_predict_loss(model, seen),
    }


def _predict_loss(model: ModelPlan, tokens: int) -> dict[str, Any]:
    """Return the prediction of published scaling laws; None for pretrained models and experts, which they exclude."""
    predicted = scaling_laws.predict_by_published_laws(model.architecture, model.vocabulary_size, tokens)
    return dict.fromkeys(predicted) if model.pretrained or model.architecture.experts else predicted


def _estimate_consumption(
    model: ModelPlan, flops: dict[str, float], devices: int, platform: PlatformPlan, energy: EnergyPlan
) -> dict[str, float | None]:
    """Return time, energy, carbon and cost; None where the platform does not state a figure that they need."""
    figures: dict[str, float | None] = dict.fromkeys((*CONSUMPTION_KEYS, "seconds_6nd", "seconds_8nd"))
    figures |= estimate_training_time(model, platform, devices)
    seconds, peak, utilization = figures["seconds"], platform.peak_flops_per_second, figures["utilization_share"]
    if seconds is None or peak is None or utilization is None:
        return figures
    for convention in ("6nd", "8nd"):
        figures[f"seconds_{convention}"] = training_cost_formulas.duration_seconds(
            flops[f"training_flops_{convention}"], devices=devices, peak_flops_per_second=peak, utilization=utilization
        )
    hours = seconds * devices / 3600
    figures["device_hours"] = hours
    if billed := platform.count_billed_cores_and_gpus(devices):
        figures["billed_core_hours"], figures["billed_gpu_hours"] = (seconds / 3600 * number for number in billed)
    if platform.price_euros_per_device_hour is not None:
        figures["cost_euros"] = hours * platform.price_euros_per_device_hour
    if platform.device_power_watts is not None:
        joules = training_cost_formulas.energy_joules(
            seconds, devices=devices, device_power_watts=platform.device_power_watts
        )
        figures["energy_joules"] = joules
        figures["facility_energy_joules"] = joules * energy.pue
        figures["carbon_grams"] = carbon_grams(
            joules, pue=energy.pue, grams_per_kwh=energy.carbon_intensity_grams_per_kwh
        )
        if energy.water_liters_per_kwh is not None:
            figures["water_liters"] = joules / JOULES_PER_KWH * energy.water_liters_per_kwh
    return figures
