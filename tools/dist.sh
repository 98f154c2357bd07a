#!/usr/bin/env bash
# Builds the native parts and lays them out in target/dist (or $REMOTEGPU_DIST), where the Python package looks for them:
#   bin/     remotegpu-worker remotegpu-gateway remotegpu-bench remotegpu-connect remotegpu-run nvidia-smi
#   client/  libcuda.so.1 libnvidia-ml.so.1   the client, under the names without .1 too: what a user's program loads
#   native/  libcuda.so.1 libnvidia-ml.so.1   the software GPU, and what keeps PTX for it: ptxas, and libraries
#                                             (stand-ins/) that are found in place of nvJitLink, and refuse, and of NVRTC
#   lib/     libremotegpu_sandbox.so          what an acceptor of offload shuts itself in with
#   python/  remotegpu (api, paths), remotegpu_offload, cloudpickle, yaml: for interpreters that do not have our package
#   frameworks/  a plugin that makes JAX look for GPUs where there are no device files
#   trace/   libcuda.so.1                     the recorder, which passes calls on to the libcuda.so.1 that the program would have got
#   dashboard/  htm.js                    what the page of operator and appliance loads that is not ours
#   pod/     what is mounted into containers  see pod.sh
# What runs in users' containers is built by zig against glibc 2.17, the oldest that CUDA's own libraries run on; with
# REMOTEGPU_PORTABLE=1 the rest is too, as the wheel has it (tools/release.py). Needs .venv (make set-up).
set -euo pipefail
cd "$(dirname "$0")/.."

dist=${REMOTEGPU_DIST:-target/dist}
target=${CARGO_TARGET_DIR:-target}
export PATH="$PWD/.venv/bin:$PATH"

portable=(--release --locked --target x86_64-unknown-linux-gnu.2.17) built=$target/x86_64-unknown-linux-gnu/release
server=(-p remotegpu-worker -p remotegpu-softgpu -p remotegpu-bench)
# Apart from each other, so that neither has code for what only the other one's crates ask of a common crate.
if [ -n "${REMOTEGPU_PORTABLE:-}" ]; then
    cargo zigbuild "${portable[@]}" "${server[@]}"
    server_built=$built
else
    cargo build --release --locked "${server[@]}"
    server_built=$target/release
fi
cargo zigbuild "${portable[@]}" -p remotegpu-client -p remotegpu-smi -p remotegpu-connect -p remotegpu-run \
    -p remotegpu-trace -p remotegpu-sandbox

# A running program may have the old file mapped: write beside it and rename.
put() {
    mkdir -p "$(dirname "$2")"
    cmp -s "$1" "$2" || { cp "$1" "$2.new" && mv "$2.new" "$2"; }
}
for program in remotegpu-worker remotegpu-gateway remotegpu-bench; do
    put "$server_built/$program" "$dist/bin/$program"
done
for program in remotegpu-connect remotegpu-run nvidia-smi; do
    put "$built/$program" "$dist/bin/$program"
done
put "$built/libremotegpu_client.so" "$dist/client/libcuda.so.1"
put "$server_built/libsoftgpu.so" "$dist/native/libcuda.so.1"
put "$built/libremotegpu_sandbox.so" "$dist/lib/libremotegpu_sandbox.so"
put "$built/libremotegpu_trace.so" "$dist/trace/libcuda.so.1"
put remoting/client/frameworks/jax_plugins/remotegpu_share.py "$dist/frameworks/jax_plugins/remotegpu_share.py"
put remoting/softgpu/ptxas "$dist/native/ptxas"
for name in libnvJitLink.so.12 libnvJitLink.so.13; do
    # In the folder that cargo builds in, beside what else dist is made of.
    made=$server_built/$name
    echo "$name { local: stand_in_*; };" >"$made.versions"
    cc -O2 -Wall -shared -fPIC "-DSONAME=$name" "-Wl,-soname,$name,--version-script,$made.versions" \
        remoting/softgpu/nvjitlink.c remoting/client/sanitizer.c -o "$made"
    put "$made" "$dist/native/stand-ins/$name"
done
for name in libnvrtc.so.12 libnvrtc.so.13; do
    made=$server_built/$name
    echo "$name { global: nvrtc*; __nvrtc*; remotegpu_stand_in; __asan_default_options; local: *; };" >"$made.versions"
    python -m ziglang cc -target x86_64-linux-gnu.2.17 -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden "-DSONAME=\"$name\"" \
        "-Wl,-soname,$name,--version-script,$made.versions" remoting/softgpu/nvrtc.c remoting/client/sanitizer.c -ldl -lpthread -o "$made"
    put "$made" "$dist/native/stand-ins/$name"
done
# Taichi and Dr.Jit open the names without a version, which a driver's development links have.
for folder in client native; do
    for name in libcuda.so libnvidia-ml.so.1 libnvidia-ml.so; do
        ln -sfn libcuda.so.1 "$dist/$folder/$name"
    done
done
tools/python.sh "$dist"
tools/dashboard.sh "$dist"
tools/pod.sh "$dist"
