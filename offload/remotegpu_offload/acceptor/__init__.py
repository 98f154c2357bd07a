"""The acceptor: an interpreter on an appliance that starts empty and runs what one client pages into it.

`zygote` forks it, `forked` and `keeper` prepare the new process, and `sandbox` (with `mounts`, `readable` and
`restrictions`) confines it before it reads a byte of the client. `session` greets the client and loads the features:
code, files, functions, torch, program. Started by the appliance. It keeps no secret, and nothing of an earlier session.
Features are loaded by name: of offload it imports only `wire`.
"""
