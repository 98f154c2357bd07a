"""An unmodified script's names: `cuda` devices, autocast, checkpoints and data loaders mean the remote device.

Called when a program imports torch (`importing`). `names` arms all of it at once.
"""
