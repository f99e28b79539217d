"""What the chapters sources and corpus will need, as a table for a person."""

from __future__ import annotations

from typing import Any

from pipeline.core.formatting import aligned
from pipeline.plan.table import readable


def corpus_lines(plan: dict[str, Any]) -> list[str]:
    """Return in lines of text what `pipeline.slurm.corpus_plan` has told; what will not fit comes last."""
    lines = ["sources, estimated", *_steps(plan["sources"]["steps"]), ""]
    for name, corpus in plan["corpora"].items():
        lines += [f"corpus {name}, estimated, as if nothing were removed", *_volumes(corpus), ""]
        lines += [*_steps(corpus["steps"]), ""]
    free = readable("bytes", plan["free_bytes"])
    lines.append(f"disk of the corpora and tokens: at most {readable('bytes', plan['disk_bytes'])}, free {free}")
    where = (
        f"{plan['cores']} cores" if plan["cores"] else "the cores that each job asks for, all jobs of a step at once"
    )
    lines.append(f"hours: on {where}, without waiting")
    lines.append(f"core hours: by {plan['rates_by']}; cores of another kind take another time; –: not measured")
    return [*lines, *(f"does not fit: {problem}" for problem in plan["problems"])]


def _volumes(corpus: dict[str, Any]) -> list[str]:
    rows = [["raw, as stored", f"{readable('bytes', corpus['raw_bytes'])} in {corpus['files']:,} files"]]
    if corpus["unknown_sources"]:
        rows.append(["not known before they are read", ", ".join(corpus["unknown_sources"])])
    sampled = f"by the first {corpus['sampled_documents']:,} of files"
    rows.append(["text", f"{readable('bytes', corpus['text_bytes'])}, {sampled}"])
    rows.append(["documents", f"{corpus['documents']:,}, {sampled}"])
    allowed = f"{corpus['documents_allowed']:,}, where few are copies"
    rows.append(["documents that deduplication allows", allowed])
    rows += [[f"disk, {name}", f"at most {readable('bytes', size)}"] for name, size in corpus["disk_bytes"].items()]
    return aligned(rows)


def _steps(steps: dict[str, dict[str, Any]]) -> list[str]:
    rows = [["step", "jobs", "of Slurm", "cores of a job", "memory of a job", "core hours", "hours"]]
    for name, step in steps.items():
        submissions = "–" if step["submissions"] is None else f"{step['submissions']:,}"
        rows.append(
            [name, f"{step['jobs']:,}", submissions, f"{step['cores']:,}", readable("bytes", step["memory_bytes"])]
        )
        rows[-1] += [_range(step, "core_seconds"), _range(step, "seconds")]
    known = [step for step in steps.values() if "low_seconds" in step]
    if known:
        keys = [f"{end}_{key}" for end in ("low", "high") for key in ("core_seconds", "seconds")]
        total = {key: sum(step[key] for step in known) for key in keys}
        rows.append(["measured steps, in turn", *[""] * 4, _range(total, "core_seconds"), _range(total, "seconds")])
    return aligned(rows)


def _range(step: dict[str, Any], key: str) -> str:
    """Return a time in hours from the least to the most; a dash where it is not known."""
    if f"low_{key}" not in step:
        return "–"
    low, high = (step[f"{end}_{key}"] / 3600 for end in ("low", "high"))
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
