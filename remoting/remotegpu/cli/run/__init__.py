"""`remotegpu run` and `trace`: shares for a command, and reports about it afterwards.

`command` puts a run together: `placement` (pure) chooses the appliances, `leasing` gets and holds shares, `local` is an
appliance for one run, `child` runs the command. `report`, `timeline` and `trace` describe the run. `plain` leaves runs
that need no Python to the program `remotegpu-run`; `notebook` is a share for a process that runs already.
"""
