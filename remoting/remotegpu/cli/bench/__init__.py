"""`remotegpu bench`: a share measured against raw TCP, in several configurations, and other limits.

`command` runs the `matrix` in the `lab`, `tables` and `report` show it. `bulk`, `softgpu`, `cupy` and `turns` are
benches of their own, for large copies, the software GPU, CuPy on it, and divided time.
"""
