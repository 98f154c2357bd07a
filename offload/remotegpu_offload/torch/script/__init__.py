"""An unmodified script's names: `cuda` devices, autocast, checkpoints and data loaders mean the remote device.

Called when a program imports torch (`importing`), never before. `names` arms all of it at once, and `wrapping`
translates devices on their way into torch and back. `cuda`, next to this folder, has the names of torch.cuda.
"""
