"""Whether a record agrees with itself, with its command line and with its attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.records import HASHED, Attempt, Record

ROUNDING_SECONDS = 0.01  # times of the calendar are whole milliseconds
SET_CLOCK_SECONDS = 60.0  # a step of the clock while a job runs, by NTP or where a virtual machine was halted
NAMED = {"--code": "code_version", "--environment": "environment_version"}


def _options(command: list[str]) -> dict[str, list[str]]:
    """The options of a command line with the words that follow each."""
    options: dict[str, list[str]] = {}
    for word in command:
        if word.startswith("--"):
            options[word] = name = []
        elif options:
            name.append(word)
    return options


def _differences(settings: dict[str, Any], given: dict[str, Any], key: str = "") -> list[str]:
    """The keys of what was given that the settings have otherwise."""
    found = []
    for name, value in given.items():
        own, place = settings.get(name), f"{key}{name}"
        if isinstance(value, dict) and isinstance(own, dict):
            found += _differences(own, value, f"{place}.")
        elif own != value:
            found.append(place)
    return found


def _command_problems(record: Record) -> list[str]:
    options = _options(record.full_command)
    problems = []
    if record.command[3:5] != record.step.split("."):
        problems.append(f"its command is {' '.join(record.command[3:5])}, its step {record.step}")
    try:
        text = options["--settings"][0]
        given = None if text.startswith(HASHED) else json.loads(text)
    except (KeyError, IndexError, ValueError):
        return [*problems, "its command names no settings"]
    if given is None:
        problems.append("its command has the digest of other settings")
    elif wrong := _differences(record.settings, given):
        problems.append(f"its command has other settings: {', '.join(wrong)}")
    for option, field in NAMED.items():
        if options.get(option, [""])[0] != getattr(record, field):
            problems.append(f"its command has another {field.replace('_', ' of the ')}")
    return problems


def check_record(run_directory: Path, record: Record, tell: Callable[[str, str], None], known: set[str]) -> None:
    """Tell where a record is not what its command line and its attempt say, or its times cannot be.

    An attempt that is `known` to be changed is believed in nothing.
    """
    problems = _command_problems(record)
    try:
        wall = (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()
        if abs(wall - record.wall_seconds) > ROUNDING_SECONDS + SET_CLOCK_SECONDS:
            problems.append(f"it took {record.wall_seconds} s and lasted {wall:.3f} s")
    except ValueError:
        problems.append("its times are none")
    if record.attempt is None:
        problems.append("it names no attempt")
    elif f"{layout.ATTEMPTS}/{record.attempt}" not in known:
        try:
            attempt = Attempt.load(run_directory / layout.ATTEMPTS / record.attempt, strict=True)
        except InputError as error:
            problems.append(str(error))
        else:
            for name in ("step", "host", "started", "ended", "wall_seconds", "cpu_seconds"):
                if getattr(attempt, name) != getattr(record, name):
                    problems.append(f"its attempt has other {name.replace('_', ' ')}")
            if attempt.status != "finished":
                problems.append(f"its attempt is {attempt.status}")
    if problems:
        tell(record.file, f"{record.file} contradicts itself: {'; '.join(problems)}.")
