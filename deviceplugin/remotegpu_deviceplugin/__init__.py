"""The device plugin: offers the pools' resources of a node to the kubelet, and mounts the client into containers.

`devices` says how many devices a resource has, `node` and `plugin` answer the kubelet. `files` and `injection` are the
mounts, `health` marks devices of pods whose GPU failed, and `handover` passes the kubelet's connections to a successor.
A program of its own, `python -m remotegpu_deviceplugin`, in the chart's DaemonSet. It must not import the operator or
follow the allocation: all devices of a resource are alike.
"""
