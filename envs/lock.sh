#!/bin/sh
# Resolve requirements.in into one lock per accelerator; needs uv. `make lock` runs it.
# The CPU and the CUDA lock both have `torch==2.13.0`; the platform of the installation selects the build, so the CPU
# lock leaves out the packages that only CUDA needs, among them torchao for products in 8 bits. ROCm takes torch
# from the platform's container.
set -eu
cd "$(dirname "$0")"
resolved=$({ cat requirements.in; echo torch==2.13.0; echo torchao==0.18.0; } |
    uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header -)
cuda_only='^(triton|torchao|cuda-[a-z]+|nvidia-[a-z0-9-]+)=='
{ echo '# CUDA: made from requirements.in by lock.sh'; echo "$resolved"; } >cuda.lock
{ echo '# CPU: made from requirements.in by lock.sh'; echo "$resolved" | grep -vE "$cuda_only" ; } >cpu.lock
echo "$resolved" | grep '^nvidia-ml-py==' >>cpu.lock # a library that zeus imports, not a part of CUDA
{ echo '# ROCm: made from requirements.in by lock.sh'; sed -e 1d -e '/^torch==/d' cpu.lock; } >rocm.lock
cd ../tests/auditors
{ echo '# Made from requirements.in by envs/lock.sh'
  uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header requirements.in; } >requirements.lock
cd ../../docs
{ echo '# Made from requirements.in by envs/lock.sh'
  uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-annotate --no-header requirements.in
} >requirements.lock
