"""The GPUs of this machine: what is found at the start, the proof that each works, and which of them take new leases.

Called by the start of the appliance and by moves. It knows no tenant; what differs by driver is in `backends`.
"""
