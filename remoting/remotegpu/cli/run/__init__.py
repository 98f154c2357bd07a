"""`remotegpu run` and `trace`: shares for a command that somebody starts, and what is told of it afterwards.

`command` puts a run together: `placement` (pure) says where shares come from, `leasing` gets and holds them, `local` is
an appliance for one run, `child` runs the command. `report`, `timeline` and `trace` say what it did. `plain` leaves
what needs no Python to the program `remotegpu-run`; `notebook` is a share for a process that runs already.
"""
