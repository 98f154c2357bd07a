#!/usr/bin/env bash
# On a GPU machine: the gpu tests from the bundle that tools/gpu_bundle.sh packed. Ends within ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m venv --system-site-packages /tmp/remotegpu-venv
/tmp/remotegpu-venv/bin/pip install --quiet --no-index --no-deps .gpu/wheels/*.whl
printf '%s/remoting\n' "$PWD" >"$(/tmp/remotegpu-venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/remotegpu.pth"
printf '#!/tmp/remotegpu-venv/bin/python\nfrom remotegpu.cli import main\nmain()\n' >/tmp/remotegpu-venv/bin/remotegpu
chmod +x /tmp/remotegpu-venv/bin/remotegpu
REMOTEGPU_DIST="$PWD/.gpu/dist" timeout 570 /tmp/remotegpu-venv/bin/python -m pytest -m gpu tests/gpu -p no:cacheprovider "$@"
