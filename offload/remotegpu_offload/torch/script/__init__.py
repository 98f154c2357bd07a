"""Makes device names in an unmodified script refer to the remote device: `cuda`, autocast, checkpoints, data loaders.

`importing` calls this package when a program imports torch, never earlier. `names` installs all parts, and `wrapping`
translates device names in arguments and results of torch. The folder `cuda`, next to this one, replaces torch.cuda.
"""
