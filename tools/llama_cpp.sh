#!/usr/bin/env bash
# Builds llama.cpp with CUDA from the source distribution that tests/llama_cpp/source.txt pins, by the nvcc of .venv, into
# target/serving/llama.cpp: llama-server, llama-cli, llama-quantize, test-backend-ops and their libraries. `few` (the
# default) has the kernels that the tests call (tests/llama_cpp/kernels.cmake says which), `all` adds the others to it.
# Built once for each source distribution, nvcc and set of flags. The code stays as it was fetched.
set -euo pipefail
cd "$(dirname "$0")/.."
kernels=${1:-few}
pinned=tests/llama_cpp/source.txt folder=target/serving python=$PWD/.venv/bin/python
choice=tests/llama_cpp/kernels.cmake few=tests/llama_cpp/programs/few_kernels.cu
toolkit=$(echo "$PWD"/.venv/lib/python*/site-packages/nvidia/cu13)
flags=(
    # PTX alone: no machine code, which nothing here would run.
    -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=80-virtual
    -DGGML_CUDA_GRAPHS=ON -DGGML_CUDA_FA=ON
    # Of what runs on the CPU; nvcc optimises kernels as always.
    '-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG' '-DCMAKE_CUDA_FLAGS_RELEASE=-O1 -DNDEBUG'
    # The result may run on another machine than the one that built it.
    -DGGML_NATIVE=OFF
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
    # libcuda.so.1 is chosen when a program starts.
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined
)
programs=(llama-server llama-cli llama-quantize test-backend-ops)
key=$( (cat "$pinned" "$choice" "$few" && "$toolkit/bin/nvcc" --version && echo "${flags[@]}" "${programs[@]}") |
    sha256sum | cut -d' ' -f1)
mkdir -p target
# The shard's tests and those on the cluster may want it at the same time.
exec 9>target/serving.lock
flock 9
case $(cat "$folder/.built" 2>/dev/null) in
    "$key all" | "$key $kernels") exit 0 ;;
esac

echo "==> llama.cpp with CUDA into $folder, $kernels kernels (docs/testing.md says how long), once"
if [ "$(cat "$folder/.fetched" 2>/dev/null)" != "$key" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/source" "$folder/links"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --require-hashes \
        --dest "$folder" --requirement "$pinned"
    tar -xzf "$folder"/llama_cpp_python-*.tar.gz -C "$folder/source" --strip-components=3 --wildcards \
        '*/vendor/llama.cpp'
    rm "$folder"/llama_cpp_python-*.tar.gz
    # The linker wants names without a version, which wheels do not have.
    for library in cudart cublas cublasLt; do
        ln -s "$toolkit/lib/lib$library.so.13" "$folder/links/lib$library.so"
    done
    ln -s "$PWD/target/dist/native/libcuda.so.1" "$folder/links/libcuda.so"
    echo "$key" >"$folder/.fetched"
fi
logged() { # FILE COMMAND...: its output is shown where it fails
    local log=$folder/$1
    shift
    "$@" >"$log" 2>&1 || { tail -40 "$log" >&2; echo "llama_cpp.sh: $1 failed; all it said is in $log" >&2; exit 1; }
}
logged configured.log cmake -S "$folder/source" -B "$folder/llama.cpp" -G Ninja "${flags[@]}" \
    -DCMAKE_PROJECT_llama.cpp_INCLUDE="$PWD/$choice" -DREMOTEGPU_KERNELS="$kernels" -DREMOTEGPU_FEW_KERNELS="$PWD/$few" \
    -DCUDAToolkit_ROOT="$toolkit" -DCMAKE_CUDA_COMPILER="$toolkit/bin/nvcc" \
    -DCMAKE_LIBRARY_PATH="$PWD/$folder/links" -DCMAKE_BUILD_RPATH="$toolkit/lib"
logged built.log cmake --build "$folder/llama.cpp" --target "${programs[@]}"
echo "$key $kernels" >"$folder/.built"
