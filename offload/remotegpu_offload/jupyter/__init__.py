"""Notebooks: magics for a kernel that runs here.

`magics` has `%remotegpu` and `%%offload`, and `cell` is the part that runs in an acceptor. `provisioner` and `proxy`
only say what takes the place of kernels in acceptors, which are gone. `%load_ext remotegpu` loads the magics by name
and gives them the notebook's share: they may import of remotegpu only `api` and `paths`.
"""
