"""kopf's handlers, one file for each kind that is watched: pools and nodes.

A handler only wakes the loop of `remotegpu_operator.pools`, which then reads the present state by itself. Handlers are
registered by `__main__`. They decide nothing about pools and write nothing. Claims and pods need no handler: `claims`
watches them through `cluster.cache`.
"""
