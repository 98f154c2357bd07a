"""The GPUs of this machine: detection at the start, a self-test of each, and which of them take new leases.

`hardware` and `selftest` use the driver in processes of their own, never in the appliance's. `health` decides after a
complaint, which it checks first. Called by the start of the appliance and by moves. It knows no tenant; `backends`
handles differences of drivers.
"""
