"""An image without Slurm, and a stand-in for Apptainer that really enters it.

The image's root is this machine's /usr, read-only and less Slurm's programs, with a few files of /etc and nothing of
/run or /tmp: neither Slurm's commands nor its configuration nor munge's socket are there. As Apptainer does, the
stand-in binds the requested folders, keeps variables and the working folder, and resets PATH. Its
mounts are in their own namespace and end with the process, which is the same outside and inside.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

from tests.conftest import is_lacking
from tests.other_release import CLIENTS
from tests.slurm.cluster import DAEMONS, SYSTEM_SEARCH

APPTAINER = """#!/bin/sh
# apptainer exec [--nv] [--bind A,B] IMAGE COMMAND …
set -eu
shift
binds=${APPTAINER_BIND:-}
while :; do
    case $1 in
    --nv) shift ;;
    --bind) binds=$binds,$2; shift 2 ;;
    *) break ;;
    esac
done
export binds image=$1 APPTAINER_NAME="${1##*/}"
shift
exec unshare --mount --propagation private sh -euc '
    mount -t overlay none -o "ro,lowerdir=$image/without:/usr" "$image/root/usr"
    for folder in proc sys dev; do mount --rbind "/$folder" "$image/root/$folder"; done
    for folder in $(echo "$binds" | tr , " "); do
        mkdir -p "$image/root$folder"
        mount --rbind "$folder" "$image/root$folder"
    done
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    exec chroot "$image/root" sh -c "cd \\"\\$0\\" && exec \\"\\$@\\"" "$PWD" "$@"' sh "$@"
"""
FILES = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "localtime")


def make(folder: Path, nodes: list[str], *folders: Path) -> dict[str, str]:
    """Make the image FOLDER/torch.sif and the stand-in FOLDER/bin/apptainer; return the variables that lead there.

    `nodes` are the names that resolve in the image, as on a cluster; `folders` are bound, with this Python.
    """
    if os.geteuid() != 0:
        is_lacking("only root can enter an image here")
    image = folder / "torch.sif"
    root = image / "root"
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "run"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):  # links into /usr
        (root / name).symlink_to(os.readlink(f"/{name}"))
    for name in FILES:
        shutil.copy(Path("/etc", name), root / "etc")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()} {' '.join(nodes)}\n")
    for name in (*CLIENTS, *DAEMONS, "munge"):
        if result := shutil.which(name, path=SYSTEM_SEARCH):
            hidden = image / "without" / Path(result).resolve().parent.relative_to("/usr") / name
            hidden.parent.mkdir(parents=True, exist_ok=True)
            if not hidden.exists():
                os.mknod(hidden, 0o020000)  # overlayfs represents a missing file by a character device 0/0
    tool = folder / "bin/apptainer"
    tool.parent.mkdir()
    tool.write_text(APPTAINER)
    tool.chmod(0o755)
    shown = {str(Path(path).resolve()) for path in (sys.prefix, sys.base_prefix, *folders)}
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}", "APPTAINER_BIND": ",".join(sorted(shown))}
