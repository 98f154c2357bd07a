"""`remotegpu doctor`: numbered checks of this installation, of appliances and of a cluster.

`here` has the checks of installation and appliances, `cluster` those of a cluster; `command` prints the results, with
the command that repairs a fault. `bundle` packs data for a bug report, without secrets. Called by `cli.app`. It repairs
nothing and stores nothing in a cluster: the pod that tests the webhook is a dry run.
"""
