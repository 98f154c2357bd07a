//! NVML for the process of the user: the devices of its shares.
