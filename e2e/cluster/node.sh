#!/bin/sh
# Makes the namespaces that it was started in those of a node, and holds them: the node's programs enter them by this process.
# Usage: node.sh NAME FOLDER MOUNT_POINT...; each mount point gets a folder of the node's own.
set -eu
name=$1 folder=$2
shift 2

hostname "$name"
mount --make-rprivate /
# Sockets, locks and network namespaces of the pods.
mount -t tmpfs -o mode=755 node-run /run
for point; do
    own="$folder/root$point"
    mkdir -p "$own"
    mount --bind "$own" "$point"
done
# As on a machine of its own: kubelet hands mounts on to containers.
mount --make-rshared /

ip link set lo up
touch "$folder/held"
exec sleep infinity
