#!/bin/sh
# install.sh SOURCE ENVIRONMENT LOCK: builds the wheel of the project in SOURCE and installs it, with the extra for
# Kubeflow, into a new virtual environment of python3; every package in the version and with the hash of the lock.
set -eu
source=$1
environment=$2
lock=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! command -v uv > /dev/null; then
    awk '/^uv==/ {found=1} found {print} found && !/\\$/ {exit}' "$lock" > "$work/uv.lock"
    python3 -m pip install --quiet --no-deps --require-hashes --target "$work/uv" --requirement "$work/uv.lock"
    PATH=$work/uv/bin:$PATH
fi
export UV_PYTHON="$(command -v python3)" UV_PYTHON_DOWNLOADS=never
uv build --quiet --wheel --build-constraints "$lock" --out-dir "$work/dist" "$source"
uv venv --quiet "$environment"
wheel=$(echo "$work"/dist/*.whl)
uv pip install --quiet --python "$environment/bin/python" --overrides "$lock" --build-constraints "$lock" \
    "tfx-embeddings[kubeflow] @ file://$wheel"
