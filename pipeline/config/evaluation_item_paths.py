"""The files of the evaluation items that documents of a corpus are compared with."""

from __future__ import annotations

from dataclasses import replace

from pipeline.config.configuration import Config
from pipeline.core.errors import InputError
from pipeline.evaluate.task_file_reader import ItemFile


def _list_suite_item_files(config: Config, corpus: str, names: list[str]) -> list[ItemFile]:
    where = f"corpus.{corpus}.decontamination"
    try:
        suites = config.evaluation.resolve_suites(config.data, names)
    except InputError as error:
        raise InputError(f"{where}.suites: {str(error).removeprefix('evaluation.suites: ')}") from None
    fields = config.corpus[corpus].decontamination.fields
    files = {file for suite in suites for file in config.item_files(suite)}
    named = [
        replace(file, fields=tuple(sorted(fields[file.task])), named=True) if file.task in fields else file
        for file in files
    ]
    return sorted(named, key=lambda file: (file.task, file.path, file.fields or (), file.named))


def list_decontamination_item_files(config: Config, corpus: str) -> list[ItemFile]:
    """Return the files of the items whose documents leave a corpus; none where that is off.

    Raises:
        InputError: there is no suite of that name, or a task or a data file is missing or wrong.
    """
    section = config.corpus[corpus].decontamination
    names = config.evaluation.suite_names if section.suites is None else section.suites
    return _list_suite_item_files(config, corpus, names) if section.enabled else []


def list_count_only_item_files(config: Config, corpus: str) -> list[ItemFile]:
    """Return the files of the items that are evaluated and do not leave a corpus, whose documents are counted."""
    section = config.corpus[corpus].decontamination
    if section.suites is None or not section.enabled:
        return []
    known = {(file.task, file.path) for file in list_decontamination_item_files(config, corpus)}
    later = _list_suite_item_files(
        config, corpus, [name for name in config.evaluation.suite_names if name not in section.suites]
    )
    return [file for file in later if (file.task, file.path) not in known]
