"""The chart's hooks: after an install or upgrade, before an uninstall, and after the end of the device plugin.

Each hook is a separate program in a Job: `python -m remotegpu_operator.lifecycle.NAME`. `install` applies the GPUPools
of the chart's values. `uninstall` removes everything that would make pods wait for remotegpu. `nodekeys` removes our
resources from the nodes' status. The operator does not import the hooks.
"""
