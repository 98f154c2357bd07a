"""`remotegpu run` and `trace`: shares for a command, and reports about it afterwards.

`plain` leaves what needs no Python to the program `remotegpu-run`. For all else `holding` has that program hold the
share: `command` puts such a run together, `local` is an appliance for one run, `child` runs the command, and `report`,
`timeline` and `trace` say what it did. `notebook` is a share for a process that runs already.
"""
