"""The command `remotegpu doctor`: numbered checks of this installation, of appliances and of a cluster.

`here` checks installation and appliances, `cluster` checks a cluster. `command` prints the results, with the command
that repairs a fault. `bundle` packs data for a bug report, without secrets. `cli.app` calls this package. It repairs
nothing and stores nothing in a cluster: the pod that tests the webhook is a dry run.
"""
