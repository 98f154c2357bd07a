#!/usr/bin/env bash
# Lays out DIST/pod from DIST/{client,native,bin,python}: what the device plugin copies to a node and mounts into containers.
#   lib/            in containers /usr/lib/remotegpu: the client under every name that programs ask for, what keeps PTX,
#                   and for offload bin/remotegpu-connect and python/
#   ld.so.preload   in containers /etc/ld.so.preload; ld.so.preload.ptx where every GPU is a software GPU
#   musl/           in containers /usr/lib/libcuda.so.1, where only musl's loader finds it
#   bin/            in containers /usr/bin
#   nvidiactl       in containers /dev/nvidiactl
set -euo pipefail
dist=$1
folder=/usr/lib/remotegpu

new=$(mktemp -d "$dist/.pod-XXXXXX")
trap 'rm -rf "$new"' EXIT
chmod 755 "$new"
mkdir -p "$new"/{lib/stand-ins,lib/bin,musl,bin}

# Debug information is most of the client's size; names of functions stay.
strip --strip-debug -o "$new/lib/libcuda.so.1" "$dist/client/libcuda.so.1"
strip --strip-debug -o "$new/bin/nvidia-smi" "$dist/bin/nvidia-smi"
strip --strip-debug -o "$new/lib/bin/remotegpu-connect" "$dist/bin/remotegpu-connect"
cp -R "$dist/python" "$new/lib/python"
ln -s libcuda.so.1 "$new/lib/libcuda.so"
ln -s libcuda.so.1 "$new/lib/libnvidia-ml.so.1"
ln -s libcuda.so.1 "$new/lib/libnvidia-ml.so"
cp "$dist/native/ptxas" "$new/lib/"
cp "$dist"/native/stand-ins/*.so.* "$new/lib/stand-ins/"

# library SOURCE OUTPUT SONAME [NEEDED...]: a library that needs others, by their names alone.
library() {
    local source=$1 output=$2 soname=$3 needed=()
    shift 3
    for name in "$@"; do
        cc -shared -nostdlib -Xlinker -soname -Xlinker "$name" -x c /dev/null -o "$new/needed-${#needed[@]}.so"
        needed+=("$new/needed-${#needed[@]}.so")
    done
    cc -O2 -fPIC -shared -nostdlib -s -Wl,--no-as-needed,--disable-new-dtags,-rpath,"$folder" -Wl,-soname,"$soname" \
        -x c "$source" -x none "${needed[@]}" -o "$new/$output"
    rm "${needed[@]}"
}

# An image may have another libcuda.so.1 in LD_LIBRARY_PATH or in the loader's cache. The loader takes a library that is
# loaded already before it searches, and it remembers every name under which it has found one: this one, preloaded, makes
# it find the client under all of them, by an RPATH, which comes before LD_LIBRARY_PATH.
library remoting/client/sanitizer.c lib/libremotegpu.so libremotegpu.so libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-ml.so
echo "$folder/libremotegpu.so" >"$new/ld.so.preload"
{
    cat "$new/ld.so.preload"
    for library in "$new"/lib/stand-ins/*; do echo "$folder/stand-ins/$(basename "$library")"; done
} >"$new/ld.so.preload.ptx"

# musl's loader reads no preload file and finds no library that glibc's symbols need. It reports what is missing by name,
# so the name is the sentence.
library /dev/null musl/libcuda.so.1 libcuda.so.1 "remotegpu: this image uses musl (Alpine), and CUDA programs need glibc: \
use an image of Debian, Ubuntu, Fedora or another distribution with glibc"

echo "This file is no device. RemoteGPU put it here because JAX uses no GPU where there is no such file." >"$new/nvidiactl"

# A plugin or an image build may be reading the old one.
rm -rf "$dist/.pod-old"
[ ! -e "$dist/pod" ] || mv "$dist/pod" "$dist/.pod-old"
mv "$new" "$dist/pod"
rm -rf "$dist/.pod-old"
trap - EXIT
