"""Back ends, one for each kind of GPU: NVIDIA's (`cuda`), and GPUs made of CPU or null GPUs (`software`).

`base` is their interface: the driver, the shareable memory of a GPU, its readings and its health. `xids` classifies
errors of NVIDIA's driver by their effect on a shared GPU. The start of the appliance and `gpus` call back ends. A back
end knows GPUs and drivers, but no tenant.
"""
