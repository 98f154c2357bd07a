"""Acceptors on an appliance: the environments it serves, their zygotes, and a process for each session.

`environments` tests and chooses environments. `zygote` and `acceptor` are the handles of the processes. `devices`
decides how a session reaches an accelerator. The entry point `extension` calls this package. The package runs in the
appliance's process, so it must never run a client's code.
"""
