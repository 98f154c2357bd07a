"""Commands that start, prepare and drain an appliance, and that suspend, resize or move its leases.

`serve` reads the options and runs the appliance in this process; `init` creates its certificates, tokens and systemd
unit. The other commands call a running appliance through `remotegpu.rpc`. `cli.app` calls this package. The appliance,
not this package, decides whether a lease may be suspended or moved.
"""
