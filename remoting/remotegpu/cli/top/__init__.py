"""The command `remotegpu top`: shows GPUs and shares of appliances or of a cluster, live in a terminal.

`appliances` and `cluster` read the two sources, `view` has the tables to show (pure), and `screen` draws them with
Textual, which only the live view needs. `cluster` builds its snapshots with the operator's package, which it finds as
an extension. `cli.app` calls this package. It only reads.
"""
