"""`python -m pipeline environment`: is what is installed what the lock says, and what was installed?"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.core import platform_files
from pipeline.job import installed


def altered(folder: Path) -> Iterator[str]:
    """Yield a sentence for each file of a distribution that is not as it was installed, and for an editable install.

    Every file that RECORD has a hash of is read. `folder` is the distribution's metadata.
    """
    name = installed.canonical(folder.name.split("-")[0])
    link = folder / "direct_url.json"
    if link.is_file() and json.loads(link.read_text(encoding="utf-8")).get("dir_info", {}).get("editable"):
        yield f"{name} is an editable install: its code is that of a folder, whatever its version says"
    try:
        rows = list(csv.reader((folder / "RECORD").read_text(encoding="utf-8").splitlines()))
    except OSError:
        yield f"{name} has no RECORD: nobody can tell whether its files are as they were installed"
        return
    for path, told, *_ in rows:
        algorithm, _, expected = told.partition("=")
        if not expected or "__pycache__/" in path:
            continue
        try:
            with (folder.parent / path).open("rb") as stream:
                digest = hashlib.file_digest(stream, algorithm).digest()
        except OSError:
            yield f"{name}: {path} is gone"
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != expected:
            yield f"{name}: {path} was changed after it was installed"


def findings(lock: str, platform: str | None, deep: bool) -> Iterator[str]:
    """Yield a sentence for each distribution of a lock that is not installed as the lock says, by name.

    Args:
        platform: whose file may allow others; none allows none.
        deep: whether all files of all installed distributions are read and compared with what was installed.

    Raises:
        InputError: there is no such lock or platform.
    """
    own = platform_files.content(platform).get("own_versions", []) if platform else []
    for name in installed.locked_names(lock):
        one = installed.difference(lock, name)
        if one and (one.installed is None or name not in map(installed.canonical, own)):
            yield one.sentence("the run", lock, platform)
    for _, folder in sorted(installed.folders().items()) if deep else ():
        yield from altered(folder)


def main(arguments: list[str]) -> int:
    """Print what is not as the lock says or not as it was installed: 0 if nothing is, else 1."""
    parser = argparse.ArgumentParser(prog="python -m pipeline environment", description=__doc__)
    parser.add_argument("--lock", default="cpu", help="the lock of envs/ without its ending: run.environment")
    parser.add_argument("--platform", help="the file of workflow/platforms whose own_versions may differ")
    parser.add_argument("--deep", action="store_true", help="read every installed file, and compare it with RECORD")
    options = parser.parse_args(arguments)
    found = list(findings(options.lock, options.platform, options.deep))
    print("\n".join(found) if found else f"What is installed is what envs/{options.lock}.lock says.")
    if extra := sorted(set(installed.folders()) - set(installed.locked_names(options.lock)) - {"pip", "setuptools"}):
        print(f"Not in the lock, and counted only where a step imports it: {', '.join(extra)}", file=sys.stderr)
    return 1 if found else 0
