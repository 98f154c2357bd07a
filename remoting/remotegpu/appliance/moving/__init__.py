"""Leases that move between appliances while their programs run: how they leave, how they arrive, where they may go.

Called by the control service. The workers move the bytes (`worker/src/moving`); here are the order of the steps and
what is undone where one of them fails.
"""
