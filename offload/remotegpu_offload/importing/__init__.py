"""Arming: what a configuration names is wrapped when it is imported; nothing is imported for that.

`arm` says what is wrapped, `hooks` calls back after an import, and `unmatched` warns of rules that match nothing.
`libraries` finds cloudpickle and PyYAML where the user's interpreter lacks them. Called by `launch` and
`sitecustomize`. It must not import torch or a module of a rule before the program does.
"""
