"""The torch device: a program's tensors and operations live where an acceptor has an accelerator.

`device` is torch's back end in the program and `dispatch` its one kernel for every operation. `script` gives it the
names that unmodified scripts use, and `stream` carries operations to `acceptor`, which executes them. `codec` is what
both ends write. The rest of offload reaches it by `script.names` and `device` alone.
"""
