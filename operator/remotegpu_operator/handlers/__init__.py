"""kopf's handlers, one module for each watched kind: pools and nodes.

A handler only wakes the loop of `remotegpu_operator.pools`, which then reads the present state. Handlers make no
decisions and write nothing. `__main__` registers them. Claims and pods need no handlers: `claims` watches them with
`cluster.cache`.
"""
