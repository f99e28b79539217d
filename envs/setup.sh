#!/bin/sh
# Set up the virtual environment: setup.sh VENV LOCK. Says what is missing before it installs anything.
set -eu
venv=$1 lock=$2 python=${PYTHON:-python3}
fail() { echo "error: $*" >&2; exit 1; }
command -v "$python" >/dev/null || fail "$python is not here: install Python 3.11 or newer, or name one with PYTHON=…"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version 2>&1) is too old: Polder needs Python 3.11 or newer; name another with PYTHON=…"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv module: install it (Debian: python3-venv)"
command -v g++ >/dev/null || command -v c++ >/dev/null ||
    fail "no C++ compiler is here: install one (Debian: g++), torch.compile and DeepSpeed's CPU optimizers need it"
free_kib=$(df -Pk . | awk 'NR == 2 {print $4}')
[ "$free_kib" -ge 6000000 ] || [ -d "$venv" ] ||
    fail "the disk has $((free_kib / 1000000)) GB free, the environment and the demo need 6 GB: free some, or work elsewhere"
case $lock in
*rocm.lock) # torch is the image's
    "$python" -c 'import torch, sys; sys.exit(not torch.version.hip)' ||
        fail "$python has no torch for ROCm: run this in the platform's image, see docs/howto/use-a-container.md"
    share=--system-site-packages ;;
*) share='' ;;
esac
echo "Setting up $venv from $lock: some minutes the first time"
[ -x "$venv/bin/python" ] || "$python" -m venv $share "$venv"
# A lock names all that its packages need: pip need not look for it, which takes longer than to install it.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$lock"
# The project itself, which gives the command polder: without its dependencies and without a network.
grep -q '^snakemake==' "$lock" || exit 0 # the tools of auditors
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index \
    --editable .
