#!/usr/bin/env bash
# Lays out DIST/python: what the offload needs in interpreters that do not have our package: those of an appliance's
# environments, and of pods. Only Python source; cloudpickle and yaml are those of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$1

mkdir -p "$dist"
new=$(mktemp -d "$dist/.python-XXXXXX")
trap 'rm -rf "$new"' EXIT
chmod 755 "$new"
mkdir -p "$new/remotegpu"
cp remoting/remotegpu/{__init__,paths}.py remoting/remotegpu/py.typed "$new/remotegpu/"
# `remotegpu.offload` is the old name of remotegpu_offload.
cp -R remoting/remotegpu/{api,offload} "$new/remotegpu/"
cp -R offload/remotegpu_offload "$new/"
rm -rf "$new"/remotegpu_offload/{appliance,cli,extension.py}
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -R "$packages"/{cloudpickle,yaml} "$new/"
# Theirs is compiled for one version of Python; yaml does without.
find "$new" \( -name __pycache__ -o -name '*.so' -o -name '*.pyd' \) -prune -exec rm -rf {} +
cp -R "$packages"/cloudpickle-*.dist-info "$packages"/[Pp]y[Yy][Aa][Mm][Ll]-*.dist-info "$new/"

# An interpreter may be reading the old one.
rm -rf "$dist/.python-old"
[ ! -e "$dist/python" ] || mv "$dist/python" "$dist/.python-old"
mv "$new" "$dist/python"
rm -rf "$dist/.python-old"
trap - EXIT
