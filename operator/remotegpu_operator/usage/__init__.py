"""Usage: who has which share since when, and the ConfigMaps in which that is kept.

Called by claims, as shares come and go. What the records mean is in `remotegpu.api.usage`.
"""
