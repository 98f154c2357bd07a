"""Programs that `remotegpu offload bench` runs in the user's interpreter. Each prints a line of JSON at its end.

`calls` measures function mode, `steps` and `moving` torch mode, `paging` and `reading` program mode. `paged` is a
package for `paging` to import. `cli.bench` starts the programs; no part of offload may import them.
"""
