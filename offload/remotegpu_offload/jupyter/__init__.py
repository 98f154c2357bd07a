"""Notebooks: magics for a kernel that runs here, and kernels that run in an acceptor."""
