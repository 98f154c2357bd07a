"""The appliance's use of this machine: control groups, memory, descriptors, user ids, folders and images.

`room`, `held` and `shortage` say what there is and what is used; `cgroups`, `uids`, `staging` and `images` give
sessions limits, user ids and files. Called by sessions and by the start of the appliance. It knows neither leases nor
GPUs.
"""
