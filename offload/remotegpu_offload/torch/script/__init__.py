"""Makes the names in an unmodified script (`cuda` devices, autocast, checkpoints, data loaders) refer to the remote
device.

`importing` calls this package when a program imports torch, never earlier. `names` installs all parts, and `wrapping`
translates device names on the way into torch and back. The folder `cuda`, next to this one, replaces torch.cuda.
"""
