#!/bin/sh
# Gather what `benchmarks/gpu.py` needs on a machine with PyTorch, Transformers and no package registry, as wheels for Python
# 3.12 on x86-64 Linux, in the versions of envs/cuda.lock. There:
#     python3 -m pip install --no-index --no-deps --target SITE FOLDER/*.whl; export PYTHONPATH=.:SITE
set -eu
folder=${1:?write: sh benchmarks/gpu_wheels.sh FOLDER}
lock=$(dirname "$0")/../envs/cuda.lock
pinned() { for name in "$@"; do grep -E "^$name==" "$lock" || { echo "error: $lock has no $name" >&2; return 1; }; done; }
download() { python3 -m pip download --quiet --no-deps --dest "$folder" "$@"; }
# A lock without one of them ends the script here: an assignment has the exit code of its command.
compiled=$(pinned pydantic pydantic-core annotated-types typing-inspection typing-extensions torchao)
deepspeed=$(pinned deepspeed)
pure=$(pinned hjson einops py-cpuinfo)
# shellcheck disable=SC2086 # a word for each package
download --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 $compiled
# DeepSpeed, for the rows of its strategies alone, is on no registry as a wheel; its own compiler is not used here.
DS_BUILD_OPS=0 python3 -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$deepspeed"
# shellcheck disable=SC2086
download --only-binary=:all: $pure
du -sh "$folder"
