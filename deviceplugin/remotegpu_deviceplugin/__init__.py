"""The device plugin: advertises the pool to the kubelet and mounts the client into containers."""
