"""The torch device: a program's tensors and operations are on the accelerator of an acceptor.

`device` is torch's back end in the program, and `dispatch` its one kernel for all operations. `script` supports the
device names of unmodified scripts. `stream` sends operations to `acceptor`, which executes them. `codec` is the format
of both ends. Other packages of offload use only `script.names` and `device`.
"""
