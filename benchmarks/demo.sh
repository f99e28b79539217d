#!/bin/sh
# How long the demo's DAG takes on this machine, from nothing, installation left out: benchmarks/demo.sh
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r Snakefile rules workflow pipeline envs config local "$folder"
python=$PWD/.venv/bin/python
cd "$folder"
start=$(date +%s)
"$python" -m snakemake --profile local --quiet all
echo "demo: $(($(date +%s) - start)) s on $(nproc) cores"
