"""Build a release into dist/: wheel, source archive, SBOM and the section of the change log. `make release` runs it.

The version is the one of `polder --version`. It has to be the newest section of CHANGELOG.md and, where this commit has
a tag, the tag. Nothing is downloaded or published.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from setuptools.build_meta import build_sdist, build_wheel

from pipeline.cli.application import VERSION

LOCK = re.compile(r"([A-Za-z0-9._-]+)==([^ ;]+)")


def check_version(project: Path, version: str) -> None:
    """End with a sentence where the change log of a project, or the tag of its commit, names another version."""
    newest = re.search(r"^## (\S+)", (project / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if newest is None or newest[1] != version:
        sys.exit(f"error: the version is {version}, but CHANGELOG.md begins with {newest and newest[1]}")
    words = ["git", "tag", "--points-at", "HEAD"]
    tags = subprocess.run(words, cwd=project, text=True, capture_output=True).stdout.split()
    if tags and f"v{version}" not in tags:
        sys.exit(f"error: the version is {version}, but this commit has the tag {tags[0]}")


def missing_addresses(project: Path) -> str | None:
    """Return a sentence where a project names no public address; a checkout cannot know its own."""
    if "urls" in tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]:
        return None
    return "pyproject.toml has no [project.urls]: before you publish, add Repository, Issues and Documentation"


def changes(text: str, version: str) -> str:
    """Return the section of a change log that is about a version."""
    section = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return section[1].strip() + "\n" if section else ""


def bill_of_materials(version: str, lock: str) -> dict[str, Any]:
    """Return the packages of a lock as CycloneDX 1.6, with the licenses that the installed ones state."""
    components = []
    for name, number in sorted(match.groups() for match in map(LOCK.match, lock.splitlines()) if match):
        component: dict[str, Any] = {"type": "library", "name": name, "version": number}
        component["purl"] = f"pkg:pypi/{name.lower().replace('_', '-')}@{number}"
        try:
            license = metadata.metadata(name)["License-Expression"]
        except metadata.PackageNotFoundError:  # of another platform
            license = None
        if license:
            component["licenses"] = [{"expression": license}]
        components.append(component)
    described = {"component": {"type": "application", "name": "polder", "version": version}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": described, "components": components}


def main() -> None:
    """Build the release of the project in this folder."""
    project, folder = Path.cwd(), Path("dist")
    check_version(project, version := VERSION)
    if sentence := missing_addresses(project):
        print(f"warning: {sentence}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = [build_sdist(str(folder)), build_wheel(str(folder))]
    shutil.rmtree("build", ignore_errors=True)  # what setuptools leaves
    for lock in sorted(Path("envs").glob("*.lock")):
        name = f"polder-{version}-{lock.stem}.cdx.json"
        content = bill_of_materials(version, lock.read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        files.append(name)
    notes = f"polder-{version}-changes.md"
    (folder / notes).write_text(changes(Path("CHANGELOG.md").read_text(encoding="utf-8"), version), encoding="utf-8")
    print("\n".join(f"dist/{name}" for name in [*files, notes]))


if __name__ == "__main__":
    main()
