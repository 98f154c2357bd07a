"""This machine, as far as the appliance takes of it: control groups, memory, descriptors, user ids, folders and images.

Called by sessions and by the start of the appliance. It knows neither leases nor GPUs.
"""
