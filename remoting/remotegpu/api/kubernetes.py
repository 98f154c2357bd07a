"""Every Kubernetes name that two parts must spell alike: resources, annotations, labels, paths, ports."""

from typing import Final

GROUP: Final = "remotegpu.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
POOLS: Final = "gpupools"
CLAIMS: Final = "gpuclaims"

RESOURCE_PREFIX: Final = "remotegpu/"
# Extended resources. Users write FRACTION. It is never stored: extended resources are whole numbers, so the webhook
# replaces FRACTION by thousandths under the name MILLI.
FRACTION: Final = "remotegpu/fraction"
MILLI: Final = "remotegpu/milli"
# Mounts the client without asking for an amount: for pods that name a claim, or that ask for memory.
CLIENT: Final = "remotegpu/client"
# Mounts the folder of a node's local sockets for writing, for appliances. Users' resources have another prefix.
LOCAL_SOCKETS: Final = "remotegpu.io/local-sockets"

# Annotations of a user's pod. The webhook refuses any other key with this prefix.
USER_PREFIX: Final = "remotegpu.io/"
CLAIM_ANNOTATION: Final = "remotegpu.io/claim"
POOL_ANNOTATION: Final = "remotegpu.io/pool"
MODEL_ANNOTATION: Final = "remotegpu.io/model"
MEMORY_ANNOTATION: Final = "remotegpu.io/memory"
COUNT_ANNOTATION: Final = "remotegpu.io/count"
COMPUTE_ANNOTATION: Final = "remotegpu.io/compute"
COMPUTE_LIMIT_ANNOTATION: Final = "remotegpu.io/compute-limit"
SPREAD_ANNOTATION: Final = "remotegpu.io/spread"
# The name of a ConfigMap with the file `remotegpu.yaml`, which lists the parts that run in an acceptor of the pool.
OFFLOAD_ANNOTATION: Final = "remotegpu.io/offload"
SUSPENDABLE_ANNOTATION: Final = "remotegpu.io/suspendable"
MOVABLE_ANNOTATION: Final = "remotegpu.io/movable"
USER_ANNOTATIONS: Final = (
    CLAIM_ANNOTATION,
    POOL_ANNOTATION,
    MODEL_ANNOTATION,
    MEMORY_ANNOTATION,
    COUNT_ANNOTATION,
    COMPUTE_ANNOTATION,
    COMPUTE_LIMIT_ANNOTATION,
    SPREAD_ANNOTATION,
    SUSPENDABLE_ANNOTATION,
    MOVABLE_ANNOTATION,
    OFFLOAD_ANNOTATION,
)

# Annotation of a GPUPool: another value asks the operator to pack the pool (`remotegpu.api.schedules`).
PACK_ANNOTATION: Final = "remotegpu.io/pack"

# Names that only our parts write. A pod that waits for or has a share gets the label, and the operator watches it.
STATUS_PREFIX: Final = "status.remotegpu.io/"
POD_LABEL: Final = "status.remotegpu.io/pod"
POD_LABEL_VALUE: Final = "true"
SESSION_ANNOTATION: Final = "status.remotegpu.io/session"
# The webhook's record of converted fractions, by request. A user's value has no effect: see webhook/origin.py.
CONVERTED_ANNOTATION: Final = "webhook.remotegpu.io/converted"
GATE: Final = "remotegpu.io/claim"

DEFAULT_POOL: Final = "default"

# Audience of a pod's token if the webhook did not know the pool: for pods that name a claim, and for pods that are
# older than `pool_audience`.
AUDIENCE: Final = "remotegpu.io"
# A projected volume in the user's container, with the session annotation and a token.
POD_VOLUME: Final = "remotegpu"
POD_DIRECTORY: Final = "/var/run/secrets/remotegpu.io"
SESSION_FILE: Final = "session"
TOKEN_FILE: Final = "token"  # noqa: S105 (a file's name)

# The folder where the device plugin mounts the client, also the pure-Python one. The preloaded library has the same
# path built in (tools/pod.sh).
CLIENT_FOLDER: Final = "/usr/lib/remotegpu"
CONNECT_PROGRAM: Final = f"{CLIENT_FOLDER}/bin/remotegpu-connect"
# Python imports `sitecustomize` from this folder at its start, and that module enables the offload.
PYTHON_START_FOLDER: Final = f"{CLIENT_FOLDER}/python/remotegpu_offload/sitecustomize"
# The volume with the ConfigMap, only in pods with OFFLOAD_ANNOTATION.
OFFLOAD_VOLUME: Final = "remotegpu-offload"
OFFLOAD_DIRECTORY: Final = "/etc/remotegpu/offload"
OFFLOAD_CONFIG: Final = "remotegpu.yaml"

# Labels of objects that the operator creates.
POOL_LABEL: Final = "remotegpu.io/pool"
APPLIANCE_LABEL: Final = "remotegpu.io/appliance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
NAME_LABEL: Final = "app.kubernetes.io/name"
MANAGER_LABEL: Final = "app.kubernetes.io/managed-by"

CONTROL_PORT: Final = 7070
DATA_PORT: Final = 7071
# The folder with the sockets of a node's appliances, as appliances and containers see it.
LOCAL: Final = "/run/remotegpu"
# Plain HTTP of an appliance: /healthz, /readyz, /metrics.
HTTP_PORT: Final = 7072


def pool_audience(pool: str) -> str:
    """Returns the audience of a pod's token.

    All appliances of the pool accept it, since a pod's volume is fixed before a GPU is chosen.
    """
    return f"{AUDIENCE}/pools/{pool}"


def appliance_audience(appliance: str) -> str:
    """Returns the audience of the operator's token for one appliance; any other appliance refuses it."""
    return f"{AUDIENCE}/appliances/{appliance}"


def server_name(appliance: str) -> str:
    """Returns the name in an appliance's certificate. The name is only compared; no DNS resolves it."""
    return f"{appliance}.appliance.remotegpu.io"
