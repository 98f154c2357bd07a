"""The usage record: which user had which share from when to when, stored in ConfigMaps.

`usage` follows the claims and creates the records, and `journal` stores them. Claims call this package when a share
changes, and the dashboard reads the ConfigMaps. Only the holder of the Lease writes. `remotegpu.api.usage` defines the
format. The package makes no decisions about shares.
"""
