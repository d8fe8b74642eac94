#!/bin/sh
# Makes an environment of its own for each NAME: setup.sh [plain pfl flower fluke fedjax]
# They lie in .venv/NAME beside this file, with what was installed listed in .venv/NAME/versions.txt.
# torch goes first and pinned, so that a package that asks for any torch does not bring gigabytes of CUDA.
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3.11}
test $# -gt 0 || set -- plain pfl flower fluke fedjax
for name in "$@"; do
    case "$name" in
        plain) packages="" ;;
        pfl) packages="pfl==0.6.0" ;;
        # 1.42.0 asks for certifi 2026.10.19 or later, which was not to be had
        flower) packages="flwr[simulation]==1.41.0" ;;
        # a torchvision that goes with that torch, or pip takes a later one and its torch, gigabytes of CUDA and all
        fluke) packages="fluke-fl==0.8.1 torch==2.13.0 torchvision==0.28.0" ;;
        # its last release calls jax.tree_map, which later versions of jax do not have
        fedjax) packages="fedjax==0.0.17 jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.12 optax==0.2.3 chex==0.1.86 numpy<2.1 scipy<1.14" ;;
        *) echo "unknown name '$name'; expected some of: plain pfl flower fluke fedjax" >&2; exit 2 ;;
    esac
    folder=.venv/$name
    test -x "$folder/bin/python" || "$PYTHON" -m venv "$folder"
    pip="$folder/bin/python -m pip --disable-pip-version-check"
    test "$name" = fedjax || $pip install --quiet torch==2.13.0 numpy
    test -z "$packages" || $pip install --quiet $packages
    $pip freeze >"$folder/versions.txt"
    echo "$name: $("$folder/bin/python" --version), $(wc -l <"$folder/versions.txt") packages"
done
