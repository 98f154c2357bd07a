"""The table of contents of the operator: what happens when the process starts, and when an object changes.

`startup` has the process: its start, its end, kopf's settings. Each other module has one kind of object. kopf watches
the kind and calls `reported` for each event; claims alone are followed by `cluster/cache.py`. The kind's store then
calls `changed`, once for each real change: after an event, the answer to a write of ours, or a sweep. `before` is None
when the object appears, and `now` is None when it goes.

A watch may miss deletions. kopf then lists the kind again, without what is gone; a sweep (`cluster/sweep.py`) finds it
a second after such a list, unless that is empty, and each minute. The list that `cluster/cache.py` makes of claims then
has this effect at once, and so has an object that was created again under the name of the one that is gone. Each minute
the sweep also finds other changes that kopf has not reported; of pods, those that it has not reported a minute later.

Handlers decide and write nothing: they call the part that does. kopf does not repeat a handler that fails, so the work
queue of claims and pods (`cluster/workqueue.py`) and the loops of `remotegpu_operator.pools` repeat what fails.
"""
