"""The chart's hooks: after an install or upgrade, before an uninstall, and after the device plugin has gone.

Each is a program of its own, `python -m remotegpu_operator.lifecycle.NAME`, in a Job. `install` makes the GPUPools of
the chart's values, `uninstall` leaves a cluster in which nothing waits for us, and `nodekeys` removes what a kubelet
keeps of our resources. The operator imports none of them.
"""
