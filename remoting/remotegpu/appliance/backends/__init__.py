"""Back ends, one for each kind of GPU: NVIDIA's (`cuda`), and GPUs made of CPU or null GPUs (`software`).

`base` is their interface: the driver, how much of a GPU leases can have, its readings and its health. `xids` says what
an error of NVIDIA's driver means for a shared GPU. Called by the start of the appliance and by `gpus`. A back end knows
GPUs and drivers, but no tenant.
"""
