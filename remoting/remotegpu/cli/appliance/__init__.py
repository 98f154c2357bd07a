"""Commands about an appliance: to start, prepare and drain it, and to suspend, resize or move its leases.

`serve` reads the options and runs the appliance in this process; `init` prepares its certificates, tokens and systemd
unit. The other commands call a running appliance through `remotegpu.rpc`. Called by `cli.app`. Whether a lease may be
suspended or moved is the appliance's decision, not made here.
"""
