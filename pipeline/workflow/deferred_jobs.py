"""What a dry run cannot plan: jobs behind a checkpoint, which run again only if what it writes is another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pipeline.workflow.steps import STEPS

STAGE_OF = {step.rule: step.stage for step in STEPS.values()}
# The stages that are planned anew when a checkpoint has run, by its rule.
BEHIND = {
    "sources_complete": ("corpus", "tokenizer", "tokens", "pretrain", "evaluate"),
    "tokens_index": ("pretrain", "evaluate"),
}


def sentence(planned: Iterable[str], others: Iterable[str]) -> str | None:
    """Return what may also run, in one sentence; None where the plan is the whole.

    Args:
        planned: the rules of the jobs that are planned.
        others: the rules of the jobs that have nothing to do so far, one for each job.
    """
    stages = {behind for rule in planned for behind in BEHIND.get(rule, ())}
    found = Counter(rule for rule in others if STAGE_OF.get(rule) in stages)
    if not found:
        return None
    listed = ", ".join(f"{rule} ({number})" for rule, number in found.items())
    return f"The plan ends where the run finds out what has changed. Behind it may also run: {listed}"
