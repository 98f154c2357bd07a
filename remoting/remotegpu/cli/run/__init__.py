"""The commands `remotegpu run` and `remotegpu trace`: hold a share for a program, and report about its calls.

`plain` passes runs that need no Python to the program `remotegpu-run`. `command` does all other runs: `holding` makes
`remotegpu-run` hold the share, `local` starts an appliance for one run, `child` runs the command. `report`, `timeline`
and `trace` describe the run. `notebook` is a share for a running process.
"""
