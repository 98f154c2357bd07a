"""The acceptor: an interpreter on an appliance that starts empty and runs the code that one client sends.

The appliance starts the `zygote`, and the zygote forks a process for each session. `forked` and `keeper` prepare the
new process. `sandbox` (with `mounts`, `readable` and `restrictions`) confines the process before it reads a byte of the
client. `session` greets the client and loads the features: code, files, functions, torch, program.

An acceptor keeps no secret, and no data of an earlier session. It imports only `wire` of offload; features are loaded
by name.
"""
