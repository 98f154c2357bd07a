"""`remotegpu offload ...`: each command's code in a module of its own.

`app` defines the commands and their options. `interpreter` finds the user's Python and runs modules of this package in
it. The command line of remotegpu finds `app` through `extension`. This package runs in remotegpu's interpreter and may
use all of remotegpu, so no other part of offload may import it.
"""
