"""Leases that move between appliances while their programs run: departure, arrival, and allowed destinations.

Called by the control service. The workers move the bytes (`worker/src/moving`); this package has the order of the steps
and the rollback if one of them fails.
"""
