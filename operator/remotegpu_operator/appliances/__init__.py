"""Appliances as the operator knows them: what they say they have, and the certificates and tokens by which both sides
prove who they are.

Called by pools and claims. `certificates` is pure. How an appliance is made is in `builders`.
"""
