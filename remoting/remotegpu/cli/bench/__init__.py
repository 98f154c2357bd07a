"""The command `remotegpu bench`: compares a share with raw TCP, in several configurations, and measures other limits.

`command` runs the configurations of `matrix` in the `lab`; `report` and `tables` show the results. `bulk`, `softgpu`,
`cupy` and `turns` are separate benchmarks of large copies, the software GPU, CuPy on it, and divided time.
"""
