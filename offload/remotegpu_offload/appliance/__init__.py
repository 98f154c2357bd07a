"""Acceptors on an appliance: the environments it serves, their zygotes, and a process for each session.

`environments` proves and chooses environments, `zygote` and `acceptor` are the handles of their processes, `devices`
says how a session reaches an accelerator. Called by `extension`, which the appliance finds by its entry point. It runs
in the appliance's process, so code of a client must never run here.
"""
