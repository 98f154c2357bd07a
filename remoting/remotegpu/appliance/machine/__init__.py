"""The appliance's use of this machine: control groups, memory, descriptors, user ids, folders and images.

Called by sessions and by the start of the appliance. It knows neither leases nor GPUs.
"""
