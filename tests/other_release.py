"""Unpack Slurm and verifiers of attestations of another release of Debian into a folder, so that tests can run them.

    python -m tests.other_release FOLDER [RELEASE]

Then POLDER_SLURM=FOLDER lets `tests.slurm.cluster` take its Slurm, and POLDER_OTHER_RELEASE=FOLDER lets
`tests/auditors` take its verifiers. Nothing is installed: apt only downloads, with lists of its own, and Slurm's
programs get the loader and the libraries of that release. Its jobs run as always on this machine.
The exit code is 75 if the packages cannot be downloaded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SLURM_DAEMONS = ("slurmdbd", "slurmctld", "slurmd")
CLIENTS = ("srun", "sbatch", "salloc", "squeue", "scontrol", "sacct", "sinfo", "scancel", "sstat", "sacctmgr", "sprio")
VERIFIERS = ("cosign", "in-toto-golang")  # programs in Go, which need only libc, so that of this machine serves
PACKAGES = ("slurmctld", "slurmd", "slurmdbd", "slurm-wlm-mysql-plugin", "slurm-client", *VERIFIERS)
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
CONFIGURATION = """
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Retries "2";
Acquire::http::Timeout "60";
"""


def _download(folder: Path, release: str) -> list[Path]:
    """Download the packages with all dependencies, as if nothing were installed; return their files.

    Raises:
        CalledProcessError: apt failed and has printed why.
    """
    answer = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], check=True, capture_output=True, text=True
    )
    mirror = next(line for line in answer.stdout.splitlines() if not line.rstrip("/").endswith("-security"))
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {release} main\n")
    (folder / "apt.conf").write_text(CONFIGURATION.format(folder=folder))
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    for words in (["update"], ["install", "--yes", "--download-only", *PACKAGES]):
        subprocess.run(["apt-get", "-qq", *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    return sorted((folder / "cache/archives").glob("*.deb"))


def unpack(folder: Path, packages: list[Path]) -> None:
    """Make `bin` with the programs of Slurm and the verifiers, and `plugins`.

    Raises:
        CalledProcessError: a command failed and has printed why.
    """
    root = folder / "root"
    root.mkdir(parents=True)
    for package in packages:
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    (loader,) = root.glob("usr/lib/*/ld-linux-*.so.*")
    plugins = loader.parent / "slurm-wlm"
    (folder / "plugins").symlink_to(plugins)
    (folder / "bin").mkdir()
    for name in (*CLIENTS, *SLURM_DAEMONS, "slurmstepd"):
        places = [root / place / f"{name}{end}" for place in ("usr/bin", "usr/sbin") for end in ("", "-wlm")]
        program = next(place for place in places if place.is_file() and not place.is_symlink())
        libraries = ["--force-rpath", "--set-rpath", f"{loader.parent}:{plugins}"]
        subprocess.run(["patchelf", "--set-interpreter", loader, *libraries, program], check=True)
        (folder / "bin" / name).symlink_to(program)
    for name in VERIFIERS:
        (folder / "bin" / name).symlink_to(root / "usr/bin" / name)
    for name in ("cache", "state"):
        shutil.rmtree(folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("release", nargs="?", default="trixie", help="Debian 13 has Slurm 24.11")
    given = parser.parse_args()
    folder = given.folder.resolve()
    try:
        packages = _download(folder, given.release)
    except (subprocess.CalledProcessError, FileNotFoundError, StopIteration):  # no mirror answers, or there is none
        sys.exit(os.EX_TEMPFAIL)
    unpack(folder, packages)


if __name__ == "__main__":
    main()
