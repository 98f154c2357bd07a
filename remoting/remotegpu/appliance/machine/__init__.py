"""The appliance's use of this machine: control groups, memory, descriptors, user ids, folders and images.

`room`, `held` and `shortage` measure available and used resources; `cgroups`, `uids`, `staging` and `images` give
sessions limits, user ids and files. `sessions` and the start of the appliance call this package. It knows neither
leases nor GPUs.
"""
