"""The one command line: `CHAPTER STEP …` for rules; `verify`, `trace`, `compare`, `plan`, `schema` for people."""

from __future__ import annotations

import importlib
import sys

from pipeline.errors import InputError

COMMANDS = {
    "verify": ("pipeline.provenance.verify", "main"),
    "trace": ("pipeline.provenance.trace", "main"),
    "compare": ("pipeline.provenance.compare", "main"),
    "plan": ("pipeline.commands", "plan"),
    "schema": ("pipeline.commands", "schema"),
}


def main(arguments: list[str]) -> int:
    """Run a person's command or a step and return the exit code: 2, and one sentence, for a mistake of the user."""
    if not arguments:
        print(__doc__)
        return 2
    # `plan estimate` is the step of the chapter of that name; `plan CONFIG` is the person's question.
    is_command = arguments[0] in COMMANDS and arguments[1:2] != ["estimate"]
    module, function = COMMANDS[arguments[0]] if is_command else ("pipeline.stage", "main")
    try:
        return int(getattr(importlib.import_module(module), function)(arguments[1:] if is_command else arguments))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
