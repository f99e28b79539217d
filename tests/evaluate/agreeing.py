"""One process of two that evaluate tasks, some of which fail: `python -m tests.evaluate.agreeing RANK MEETING`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from pipeline.core.errors import InputError
from pipeline.evaluate import lm_eval_model, suites
from pipeline.evaluate.task_failures import gather_values_across_processes


def main(rank: int, meeting: str) -> None:
    """Print the outcome of each task, and the result of a later exchange."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = lm_eval_model.LmEvalModel.__new__(lm_eval_model.LmEvalModel)
    model.process_count, model.process_index = 2, rank

    def shared(do: Callable[[int], Any]) -> Any:
        return model._distribute([3, 2, 1, 0], do)

    def alone() -> float:  # fails in one process, before or after the others exchange anything
        return 1 // rank

    def before_the_answers() -> Any:
        alone()
        return shared(lambda part: part)

    def of_one_part() -> Any:
        return shared(lambda part: 1 // part)

    for number, do in enumerate([alone, before_the_answers, of_one_part, lambda: shared(lambda part: part * 2)]):
        try:
            print(number, suites._run_in_all_processes(f"quiz{number}", "asking it", do), flush=True)
        except InputError as error:
            print(number, error, flush=True)
    print(gather_values_across_processes(rank))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
