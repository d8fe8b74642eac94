#!/bin/sh
# Makes an environment of its own for each NAME: setup.sh [plain pfl flower fluke fedjax fedloom]
# They lie in .venv/NAME beside this file, with what was installed listed in .venv/NAME/versions.txt.
# torch goes first and pinned, so that a package that asks for any torch does not bring gigabytes of CUDA.
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3.11}
for name in "${@:-}"; do
    case "$name" in
        plain) packages="" ;;
        pfl) packages="pfl==0.6.0" ;;
        flower) packages="flwr[simulation]==1.41.0" ;;
        fluke) packages="fluke-fl==0.8.1" ;;
        fedjax) packages="fedjax==0.0.17 ${FEDJAX_PINS:-}" ;;
        fedloom) packages="-e ../.." ;;
        *) echo "unknown name '$name'; expected some of: plain pfl flower fluke fedjax fedloom" >&2; exit 2 ;;
    esac
    folder=.venv/$name
    test -x "$folder/bin/python" || "$PYTHON" -m venv "$folder"
    pip="$folder/bin/python -m pip --disable-pip-version-check"
    test "$name" = fedjax || $pip install --quiet torch==2.13.0 numpy
    test -z "$packages" || $pip install --quiet $packages
    $pip freeze >"$folder/versions.txt"
    echo "$name: $("$folder/bin/python" --version), $(wc -l <"$folder/versions.txt") packages"
done
