"""Values between the two ends: pickles whose large buffers are pages, and handles to what stays where it is.

`codec` is one end's side of it. `encoder` writes, `restricted` reads in the client, `pages` names large buffers by
their content, and `table` counts handles. `arrays`, `frames`, `sparse` and `values` write known types in a form that
can be checked. Used by `functions` and torch mode. The client must not execute anything that an acceptor chose. It
imports no other part of offload.
"""
