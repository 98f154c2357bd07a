"""Appliances as the operator knows them: their reports, and certificates and tokens for mutual authentication.

Called by pools and claims. `certificates` is pure. Appliances are built in `builders`.
"""
