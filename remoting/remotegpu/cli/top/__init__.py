"""`remotegpu top`: GPUs and shares of appliances or of a cluster, live in a terminal.

`appliances` and `cluster` read the two sources, `view` has the tables to show (pure), and `screen` draws them with
Textual, which only the live view needs. `cluster` takes its snapshots from the operator's package, found as an
extension. Called by `cli.app`. It only reads.
"""
