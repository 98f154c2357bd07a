"""Appliances as the operator knows them: their reports, and certificates and tokens for mutual authentication.

`inventory` asks each appliance for its report. `authority` keeps certificates in Secrets and changes them as
`certificates` decides (pure); `tokens` are the operator's own. Called by pools, claims and the dashboard. It makes no
appliance: `builders` builds the objects, and pools write them.
"""
