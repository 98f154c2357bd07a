"""Usage: who has which share since when, and the ConfigMaps in which that is kept.

Called by claims, as shares come and go. `remotegpu.api.usage` defines the records.
"""
