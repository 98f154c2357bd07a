"""The appliance: serves the GPUs of one machine to leases and their sessions.

`server` puts the parts together, `service` answers the calls of the control service. `moving` and `claims` use
`leases`, which use `sessions`; `shares`, `gpus` and `machine` are below them, and `backends` know GPUs, not tenants.
Gateway and workers are programs of their own (`remoting/worker`), which it starts and watches. `remotegpu appliance`
runs it. It must not import the command line, and knows offload only as an extension.
"""

from remotegpu import rpc  # noqa: F401 (imports gRPC as it has to be, before the modules here do)
