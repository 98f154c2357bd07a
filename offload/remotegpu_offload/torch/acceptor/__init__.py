"""The torch device in an acceptor: executes batches of operations in the order of their numbers, and answers requests.

Runs where the accelerator is. It knows nothing of the client but `codec`.
"""
