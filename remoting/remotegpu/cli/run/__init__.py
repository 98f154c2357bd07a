"""`remotegpu run` and `trace`: shares for a command, and reports about it afterwards.

`plain` leaves runs that need no Python to the program `remotegpu-run`. For all others `holding` has that program hold
the share: `command` puts such a run together, `local` is an appliance for one run, `child` runs the command. `report`,
`timeline` and `trace` describe the run. `notebook` is a share for a process that runs already.
"""
