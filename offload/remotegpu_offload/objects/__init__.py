"""Values that the two ends exchange: pickles whose large buffers are pages, and handles to objects that are not sent.

`codec` is one end's half. `encoder` writes, `restricted` reads in the client, `pages` names large buffers by a hash of
their content, and `table` counts handles. `arrays`, `frames`, `sparse` and `values` write known types in a form that
the reader can check. `functions` and torch mode use this package; it imports no other part of offload. The client must
not execute anything that an acceptor chose.
"""
