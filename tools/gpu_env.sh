#!/usr/bin/env bash
# An environment with the project, from a bundle (tools/gpu_bundle.sh) and without internet.
# Usage: tools/gpu_env.sh FOLDER_OF_THE_ENVIRONMENT [BUNDLE, default .gpu] [PYTHON, default python3]
# PYTHON's own packages (torch, jax, cupy, ...) can be imported there as well, behind the bundle's. PYTHON may be a virtual environment
# itself, which `venv --system-site-packages` would look past.
set -euo pipefail
cd "$(dirname "$0")/.."
env=$1 bundle=${2:-.gpu} python=${3:-python3}
tar -C "$bundle" -xzf "$bundle/dist.tar.gz"
"$python" -m venv --clear "$env"
"$env/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-index --find-links "$bundle/wheels" --requirement "$bundle/wanted.txt"
site=$("$env/bin/python" -c 'import site; print(site.getsitepackages()[0])')
printf '%s/remoting\n' "$PWD" >"$site/remotegpu.pth"
"$python" -c 'import site, sys
for folder in (*site.getsitepackages(), site.getusersitepackages()):
    if folder in sys.path: print(f"import site; site.addsitedir({folder!r})")' >"$site/zz-packages-of-the-machine.pth"
printf '#!%s/bin/python\nfrom remotegpu.cli import main\nmain()\n' "$(cd "$env" && pwd)" >"$env/bin/remotegpu"
chmod +x "$env/bin/remotegpu"
