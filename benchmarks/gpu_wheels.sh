#!/bin/sh
# Gather what `benchmarks/gpu.py` needs on a machine with PyTorch, Transformers and no package registry, as wheels for Python
# 3.12 on x86-64 Linux, in the versions of envs/cuda.lock. There:
#     python3 -m pip install --no-index --no-deps --target SITE FOLDER/*.whl; export PYTHONPATH=.:SITE
set -eu
folder=${1:?write: sh benchmarks/gpu_wheels.sh FOLDER}
lock=$(dirname "$0")/../envs/cuda.lock
pinned() { for name in "$@"; do grep -E "^$name==" "$lock"; done; }
download() { python3 -m pip download --quiet --no-deps --dest "$folder" "$@"; }
# shellcheck disable=SC2046 # a word for each package
download --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    $(pinned pydantic pydantic-core annotated-types typing-inspection typing-extensions torchao)
# DeepSpeed, for the rows of its strategies alone, is on no registry as a wheel; its own compiler is not used here.
DS_BUILD_OPS=0 python3 -m pip wheel --quiet --no-deps --wheel-dir "$folder" $(pinned deepspeed)
download --only-binary=:all: $(pinned hjson einops py-cpuinfo)
du -sh "$folder"
