"""kopf's handlers: what happens when the process starts and ends, and when an object appears, changes or goes.

`startup` has the process and kopf's settings. `pools` and `nodes` wake the loop of `remotegpu_operator.pools`, which
then reads the present state. Handlers make no decisions and write nothing. Claims and pods need no handlers: `claims`
watches them with `cluster.cache`.
"""

from remotegpu_operator.handlers import nodes, pools, startup

__all__ = ["nodes", "pools", "startup"]
