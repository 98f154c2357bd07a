"""The chart's hooks: after an install or upgrade, before an uninstall, and after the device plugin has gone.

Each is a program of its own, `python -m remotegpu_operator.lifecycle.NAME`, which the chart runs as a Job.
"""
