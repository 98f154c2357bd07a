"""`remotegpu offload ...`: each command's code in a module of its own."""
