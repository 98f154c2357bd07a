"""`remotegpu offload explain`: a program is run here, on the CPU, and what of it would cross is counted.

`program` runs it and counts, with `calls` and `changes` for functions and `tensors` for torch mode. `suggest` proposes
rules (pure), and `local` is an acceptor of this machine. `cli.explain` starts `program` in the user's interpreter. No
appliance is needed, and no part of offload may import it.
"""
