"""Usage: who has which share since when, and the ConfigMaps in which that is kept.

`usage` says what is recorded and when, and `journal` stores it; only the holder of the Lease writes. Called by claims,
as shares come and go; the dashboard reads the journal. `remotegpu.api.usage` defines the records. It decides nothing
about shares.
"""
