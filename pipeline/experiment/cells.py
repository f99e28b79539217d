"""Make the cells of an experiment: models of the run whose names do not change when cells are added."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.settings import Settings
from pipeline.experiment.settings import CORPUS_PREFIX, Cell, Experiment, ExperimentPage, Values
from pipeline.model.size_and_cost import training_flops
from pipeline.plan.settings import PlatformPlan
from pipeline.pretrain.monitors import memory_estimate
from pipeline.pretrain.parallel import process_layout
from pipeline.pretrain.settings import Model

PLAIN_WORD = re.compile(r"[a-z0-9_-]{1,24}")
LONGEST_NAME = 100  # characters of a name: file names hold it, with a step and a time behind
MOST_ROUNDING = 0.01  # share by which the steps of a cell may be others than those that would be equal


@dataclass(frozen=True)
class CellContext:
    """The platform that cells are trained on.

    Attributes:
        processes: of a model.
        per_node: processes on a node.
        platform: the figures of the plan.
        vocabulary_size: returns the vocabulary size of a token set.
        tokens_with: returns the token set that differs from another one in these keys of its corpus.
    """

    processes: int
    per_node: int
    platform: PlatformPlan
    vocabulary_size: Callable[[str], int]
    tokens_with: Callable[[str, Values], str]


def list_combinations(experiment: Experiment) -> list[Values]:
    """Return the combinations of values that are not excluded, in their written order.

    Raises:
        ValueError: none is left, or with the seeds they are more than the limit.
    """
    every = math.prod(map(len, experiment.vary.values())) * max(len(experiment.seeds), 1)
    problem = f"{every:,} cells are more than limit {experiment.limit}: vary less, exclude some, or raise limit"
    if every > 1000 * experiment.limit:  # too many for any list of exclusions
        raise ValueError(problem)
    combinations = [
        values
        for each in product(*experiment.vary.values())
        if not _is_excluded(values := dict(zip(experiment.vary, each, strict=True)), experiment)
    ]
    cells = len(combinations) * max(len(experiment.seeds), 1)
    if cells > experiment.limit:
        raise ValueError(problem.replace(f"{every:,}", f"{cells:,}", 1))
    if not combinations:
        raise ValueError("exclude leaves no cell: leave one of its entries out")
    return combinations


def _is_excluded(values: Values, experiment: Experiment) -> bool:
    return any(all(values[key] == value for key, value in partial.items()) for partial in experiment.exclude)


def cell_name(experiment: str, values: Values, seed: int) -> str:
    return f"{variant_name(experiment, values)}-seed-{seed}"


def variant_name(of: str, values: Values) -> str:
    """Return a name from the last word of each key and its value.

    A value that is long or has other characters than names, and a name that is too long, become a hash.
    """
    words = [f"{key.rpartition('.')[2]}-{_value_word(value)}" for key, value in values.items()]
    name = "-".join([of, *words])
    return name if len(name) <= LONGEST_NAME else f"{of}-{_hash_value(values)}"


def _value_word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text.replace(".", "_").replace("+", "")
    return plain if PLAIN_WORD.fullmatch(plain) else _hash_value(value)


def _hash_value(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _vary_section(base: Model, values: Values, seed: int, place: CellContext) -> dict[str, Any]:
    """Return the section of a cell's model in the configuration."""
    own = {key: value for key, value in values.items() if not key.startswith(CORPUS_PREFIX)}
    section = replace_values(base.model_dump(exclude_unset=True) | {"seed": seed}, own)
    if of_corpus := {key.removeprefix(CORPUS_PREFIX): values[key] for key in values.keys() - own.keys()}:
        section["tokens"] = place.tokens_with(section.get("tokens", base.tokens), dict(sorted(of_corpus.items())))
    return section


def replace_values(section: dict[str, Any], values: Values) -> dict[str, Any]:
    """Set keys of a section, such as training.steps; return the section."""
    for key, value in values.items():
        *parents, last = key.split(".")
        node = section
        for parent in parents:
            if not isinstance(node.setdefault(parent, {}), dict):
                node[parent] = {}
            node = node[parent]
        node[last] = value
    return section


def expand_experiment(
    name: str, experiment: Experiment, base: Model, base_seed: int, place: CellContext
) -> Iterator[tuple[Cell, Model]]:
    """Yield the cells of an experiment, each with its model; a cell may state why it does not fit the platform.

    Raises:
        ValueError: there are too many, two have one name, or no number of steps gives the equal amount.
        ValidationError: a combination is no model.
    """
    names = dict[str, Values]()
    for values in list_combinations(experiment):
        for seed in experiment.seeds or [base_seed]:
            own = cell_name(name, values, seed)
            if own in names:
                raise ValueError(f"{names[own]} and {values} would both be called {own}: write one of them otherwise")
            names[own] = values
            model = Model.model_validate(_vary_section(base, values, seed, place))
            rounded = 0.0
            if experiment.equal != "steps":
                model, rounded = _match_training_cost(model, base, experiment.equal, place)
            yield (
                Cell(
                    name=own,
                    values=values,
                    seed=seed,
                    steps=model.training.steps,
                    rounded=rounded,
                    refused=explain_platform_misfit(model, place),
                ),
                model,
            )


def _match_training_cost(model: Model, base: Model, equal: str, place: CellContext) -> tuple[Model, float]:
    """Return the model with as many steps as match the base in tokens or FLOPs, and the share of the rounding.

    The plan computes joules from FLOPs by one utilization and one power, so that equal joules are equal FLOPs.
    """
    known = place.platform
    if equal == "joules" and None in (
        *(known.peak_flops_per_second, known.model_flops_utilization, known.device_power_watts),
    ):
        raise ValueError(
            f"equal joules needs a platform that states peak_flops_per_second, model_flops_utilization and "
            f"device_power_watts, and {known.name} does not: choose another platform, or equal flops"
        )

    def count_tokens_or_flops(one: Model, steps: int) -> int:
        """Return the tokens or FLOPs of the first steps."""
        batches = one.training.batch_schedule
        if equal == "tokens":
            return batches.count_tokens(0, steps)
        return training_flops(one.architecture, place.vocabulary_size(one.tokens), batches, 0, steps)

    ramp = model.training.batch_schedule.ramp_steps
    of_ramp = count_tokens_or_flops(model, ramp)
    wanted = ramp + (count_tokens_or_flops(base, base.training.steps) - of_ramp) / (
        count_tokens_or_flops(model, ramp + 1) - of_ramp
    )
    steps = max(round(wanted), ramp + 1)
    rounded = steps / wanted - 1
    if abs(rounded) > MOST_ROUNDING:
        raise ValueError(
            f"equal {equal} asks for {wanted:.4g} steps, and {steps} are {abs(rounded):.1%} off: give the base more "
            "steps, or vary by values that divide"
        )
    training = model.training.model_dump(exclude_unset=True) | {"steps": steps}
    section = model.model_dump(exclude_unset=True) | {"training": training}
    return Model.model_validate(section), rounded


def explain_platform_misfit(model: Model, place: CellContext) -> str | None:
    """Explain in one sentence why a model cannot be trained on the platform; None if it can.

    Either the layout of processes is impossible, or the plan's state and activations, which are less than the real
    ones, exceed the platform's memory.
    """
    training, architecture = model.training, model.architecture
    vocabulary_size = place.vocabulary_size(model.tokens)
    try:
        process_layout.check_mesh_divides_model(
            training, architecture, vocabulary_size, place.processes, place.per_node
        )
    except InputError as error:
        return str(error)
    sizes = process_layout.make_layout(training, place.processes, place.per_node)
    needed = memory_estimate.estimate_bytes(training, architecture, vocabulary_size, sizes, training.micro_batch_size)
    memory = place.platform.memory_bytes_per_device
    if memory is None or needed <= memory:
        return None
    return (
        f"it needs {needed / memory_estimate.GIBIBYTE:.3g} GiB of a device by the plan's formulas, and "
        f"{place.platform.name} "
        f"has {memory / memory_estimate.GIBIBYTE:.3g} GiB"
    )


def find_compared_combination(experiment: Experiment, base: Model, corpus: Settings) -> Values:
    """Return the combination to compare with: values of `to`, else of the base, else the first ones.

    Args:
        experiment: with its `compare.to`.
        base: the model.
        corpus: that of the base.
    """
    written = base.model_dump(mode="json") | {"corpus": corpus.model_dump(mode="json")}
    combination: Values = {}
    for key, values in experiment.vary.items():
        node: Any = written
        for word in key.split("."):
            node = node.get(word) if isinstance(node, dict) else None
        combination[key] = experiment.compare.to.get(key, node if node in values else values[0])
    return combination


def make_experiment_page_settings(
    experiment: Experiment, base: Model, corpus: Settings, cells: list[Cell]
) -> ExperimentPage:
    """Return the settings of an experiment's page.

    Raises:
        ValueError: the combination to compare with is excluded.
    """
    to = find_compared_combination(experiment, base, corpus)
    if all(cell.values != to for cell in cells):
        raise ValueError(f"compare.to: no cell has {to}: name another combination")
    return ExperimentPage(
        base=experiment.base,
        equal=experiment.equal,
        keys=[*experiment.vary],
        cells=cells,
        to=to,
        metrics=experiment.compare.metrics,
        alpha=experiment.compare.alpha,
    )
