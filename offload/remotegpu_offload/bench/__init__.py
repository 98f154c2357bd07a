"""Programs that `remotegpu offload bench` runs in the user's interpreter: ordinary ones that end with a line of JSON.

`calls` measures function mode, `steps` and `moving` torch mode, `paging` and `reading` program mode; `paged` is a
package to be imported. `cli.bench` starts them. No part of offload may import them.
"""
