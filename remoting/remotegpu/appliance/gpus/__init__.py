"""The GPUs of this machine: detection at the start, a self-test of each, and which of them take new leases.

Called by the start of the appliance and by moves. It knows no tenant; `backends` handles differences of drivers.
"""
