"""Acceptors on an appliance: the environments it serves, their zygotes, and a process for each session."""
