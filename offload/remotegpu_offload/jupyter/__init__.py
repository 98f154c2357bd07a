"""Notebooks: magics for a kernel that runs on this machine.

`magics` defines `%remotegpu` and `%%offload`, and `cell` is the part that runs in an acceptor. `provisioner` and
`proxy` belong to kernels in acceptors, which were removed: they print the replacement. `%load_ext remotegpu` loads the
magics by name and passes the notebook's share. Of remotegpu, this package may import only `api` and `paths`.
"""
