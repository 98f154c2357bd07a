"""The GPUs of this machine: detection at the start, a self-test of each, and which of them take new leases.

`hardware` and `selftest` use the driver in separate processes, never in the appliance's process. `health` checks each
reported error before it takes a GPU out of use. The start of the appliance and `moving` call this package. It knows no
tenant; `backends` handles differences of drivers.
"""
