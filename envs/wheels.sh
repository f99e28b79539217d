#!/bin/sh
# An environment for machines without internet. `wheels.sh pack LOCK FOLDER`, where there is internet, gathers a lock's wheels
# and their hashes; FOLDER is carried over; `wheels.sh install FOLDER VENV` checks the hashes and installs them there.
# Pack with the Python version and the kind of processor that the other machine has, on a Linux that is not newer.
set -eu
python=${PYTHON:-python3}
fail() { echo "error: $*" >&2; exit 1; }
version() { "$python" -c 'import platform, sys; print(*sys.version_info[:2], platform.machine())'; }

pack() {
    lock=$1 folder=$2
    mkdir -p "$folder"
    # A lock names every package, so none is looked for. What is no wheel yet is built into one.
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder" --requirement "$lock"
    version >"$folder/python"
    (
        cd "$folder"
        for wheel in *.whl; do
            rest=${wheel#*-}
            echo "${wheel%%-*}==${rest%%-*} --hash=sha256:$(sha256sum "$wheel" | cut -d' ' -f1)"
        done >requirements.txt
        sha256sum -- *.whl python requirements.txt >SHA256SUMS
    )
    echo "$(grep -c . "$folder/requirements.txt") wheels in $folder; carry it over and compare this there:"
    sha256sum "$folder/SHA256SUMS"
}

install() {
    folder=$1 venv=$2
    [ -f "$folder/requirements.txt" ] || fail "$folder holds no wheels: make it with envs/wheels.sh pack LOCK $folder"
    [ "$(version)" = "$(cat "$folder/python")" ] ||
        fail "$folder is for Python and processor $(cat "$folder/python"), this is $(version): name another with PYTHON=…"
    (cd "$folder" && sha256sum --check --quiet SHA256SUMS) ||
        fail "a file of $folder is missing, or another than was packed: carry it over again"
    sha256sum "$folder/SHA256SUMS"
    # A lock without torch is for an image that has it.
    if grep -q '^torch==' "$folder/requirements.txt"; then share=''; else share=--system-site-packages; fi
    [ -x "$venv/bin/python" ] || "$python" -m venv $share "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$folder" \
        --no-deps --require-hashes --requirement "$folder/requirements.txt"
    if grep -q '^snakemake==' "$folder/requirements.txt"; then # a lock of the project: the command polder, from this checkout
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation \
            --editable "$(dirname "$0")/.."
    fi
}

case "${1:-}-$#" in
pack-3) pack "$2" "$3" ;;
install-3) install "$2" "$3" ;;
*) fail "write: sh envs/wheels.sh pack LOCK FOLDER, or: sh envs/wheels.sh install FOLDER VENV" ;;
esac
