"""Offload: functions, classes and tensors of a Python program run in an acceptor on an appliance.

It runs inside the user's interpreter, so it imports the standard library, cloudpickle and yaml, and of ours only `api`.
"""
