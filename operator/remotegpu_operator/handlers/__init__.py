"""The table of contents of the operator: what happens when the process starts, and when an object changes.

`startup` has the process: its start, its end, kopf's settings. Each other module has one kind of object. kopf watches
the kind and calls `reported` for each event. The kind's store then calls `changed`, once for each real change: after an
event, the answer to a write of ours, or a sweep that found a deletion (`cluster/sweep.py`). `before` is None when the
object appears, and `now` is None when it goes.

Handlers decide and write nothing: they call the part that does. kopf does not repeat a handler that fails, so the work
queue of claims and pods (`cluster/workqueue.py`) and the loops of `remotegpu_operator.pools` repeat what fails.
"""
