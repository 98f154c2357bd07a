"""The appliance: serves the GPUs of one machine to leases and their sessions.

`server` puts the parts together, `service` answers the calls of the control service. `moving` and `claims` use
`leases`, which use `sessions`; `shares`, `gpus` and `machine` are below them, and `backends` know GPUs, not tenants.
Gateway and workers are separate programs (`remoting/worker`), which the appliance starts and watches. The command
`remotegpu appliance` runs it. This package must not import the command line, and uses offload only as an extension.
"""

from remotegpu import rpc  # noqa: F401 (imports gRPC as it has to be, before the modules here do)
