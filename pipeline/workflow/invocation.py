"""What a command line of snakemake asks for: a workflow is not told before it is read."""

from __future__ import annotations

from typing import Literal

from snakemake.cli import get_argument_parser

# What snakemake does instead of making files: the attributes of its command line.
NO_EXECUTIONS = (
    *("lint", "list_target_rules", "list_rules", "print_compilation", "containerize", "generate_unit_tests", "dag"),
    *("rulegraph", "filegraph", "d3dag", "cleanup_metadata", "conda_cleanup_envs", "conda_create_envs_only"),
    *("list_conda_envs", "cleanup_shadow", "container_cleanup_images", "list_changes", "list_input_changes"),
    *("list_params_changes", "list_untracked", "summary", "detailed_summary", "archive", "delete_all_output"),
    *("delete_temp_output", "dryrun", "touch"),
)


def action(words: list[str]) -> Literal["execution", "unlock", "other"]:
    """Return what the words of a command line ask for."""
    options = vars(get_argument_parser().parse_known_args(words)[0])
    if options["unlock"]:
        return "unlock"
    is_report = (options["report"] or options["reporter"]) and not options["report_after_run"]
    return "other" if is_report or any(options[name] for name in NO_EXECUTIONS) else "execution"
