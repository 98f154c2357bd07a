"""The device plugin: advertises remotegpu's resources to a node's kubelet, and mounts the client into containers.

`devices` computes the number of devices of a resource; `node` and `plugin` answer the kubelet. `files` copies the
client's files to the node, and `injection` builds the mounts. `health` marks the devices of pods whose GPU failed.
`handover` passes the kubelet's connections to the next plugin of the node.

The chart's DaemonSet runs `python -m remotegpu_deviceplugin`. The plugin must not import the operator. All devices of a
resource are alike, so the plugin does not follow the allocation of GPUs.
"""
