"""Leases that move between appliances while their programs run: departure, arrival, and allowed destinations.

The control service calls this package. The workers move the bytes (`worker/src/moving`). This package controls the
order of the steps, and rolls back if one of them fails.
"""
