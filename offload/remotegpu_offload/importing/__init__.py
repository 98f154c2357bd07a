"""Arming: wraps the functions and classes that a configuration names when the program imports their modules.

`arm` decides what to wrap, `hooks` calls back after an import, and `unmatched` warns of rules that match nothing.
`libraries` finds cloudpickle and PyYAML if the user's interpreter lacks them. `launch` and `sitecustomize` call this
package. It must not import torch or a module of a rule before the program does.
"""
