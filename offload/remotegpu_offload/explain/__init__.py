"""`remotegpu offload explain`: runs a program on this machine's CPU, and counts the data that offload would transfer.

`program` runs it and counts, with `calls` and `changes` for functions and `tensors` for torch mode. `suggest` proposes
rules (pure), and `local` is an acceptor on this machine. `cli.explain` starts `program` in the user's interpreter. No
appliance is needed, and no other part of offload may import this package.
"""
