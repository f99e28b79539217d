"""Command lines of jobs: their options, and their settings, of which records and attempts have the digest alone."""

from __future__ import annotations

import hashlib
import json
from typing import Any

DIGEST = "sha256:"


def settings_json(settings: Any) -> str:
    """Return settings as a command line has them."""
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)


def settings_digest(settings: str) -> str:
    """Return `sha256:` and the hash of settings, given as a command line has them; of a digest itself."""
    return settings if settings.startswith(DIGEST) else f"{DIGEST}{hashlib.sha256(settings.encode()).hexdigest()}"


def planned_settings_digest(command: list[str]) -> str:
    """Return the digest of the settings of a command line, whole or short."""
    return settings_digest(command_option(command, "--settings") or "")


def short_command(command: list[str]) -> list[str]:
    """Return a command line with the digest of its settings in their place."""
    before = ["", *command]
    return [settings_digest(word) if before[number] == "--settings" else word for number, word in enumerate(command)]


def command_options(command: list[str]) -> list[tuple[str, list[str]]]:
    """Return the options of a command line with their values; `--name=value` is one of one value."""
    options: list[tuple[str, list[str]]] = []
    for word in command:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            options.append((name, [value] if equals else []))
        elif options:
            options[-1][1].append(word)
    return options


def command_option(command: list[str], name: str) -> str | None:
    """Return the first value of an option of a command line; None where it has none."""
    return next((values[0] for option, values in command_options(command) if option == name and values), None)
