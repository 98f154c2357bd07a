"""Every name that two parts must spell alike: environment variables and default values."""

from typing import Final

# Read by the CLI as defaults of its options.
APPLIANCE_ENV: Final = "REMOTEGPU_APPLIANCE"
TOKEN_ENV: Final = "REMOTEGPU_TOKEN"  # noqa: S105 (a name, not a secret)
TOKEN_FILE_ENV: Final = "REMOTEGPU_TOKEN_FILE"  # noqa: S105
CA_ENV: Final = "REMOTEGPU_CA"
SERVER_NAME_ENV: Final = "REMOTEGPU_SERVER_NAME"

# Read by the client library in the user's process.
SHARES_ENV: Final = "REMOTEGPU_SHARES"
# For tests: a folder with the pod's session and token, in place of the usual folder.
POD_DIRECTORY_ENV: Final = "REMOTEGPU_POD_DIRECTORY"
CARRIER_ENV: Final = "REMOTEGPU_CARRIER"
STRIPES_ENV: Final = "REMOTEGPU_STRIPES"
STATS_ENV: Final = "REMOTEGPU_STATS"
LOG_ENV: Final = "REMOTEGPU_LOG"

# Read by both drivers: the file that gets a line for each unsupported request.
REPORT_ENV: Final = "REMOTEGPU_REPORT"

# Read by the recorder (tools/recorder): the file to write or to replay, whether memory contents and times are recorded,
# and the folder in which each process gets a number.
TRACE_RECORD_ENV: Final = "REMOTEGPU_TRACE_RECORD"
TRACE_REPLAY_ENV: Final = "REMOTEGPU_TRACE_REPLAY"
TRACE_CONTENTS_ENV: Final = "REMOTEGPU_TRACE_CONTENTS"
TRACE_TIMES_ENV: Final = "REMOTEGPU_TRACE_TIMES"
TRACE_CLAIMS_ENV: Final = "REMOTEGPU_TRACE_CLAIMS"
# The driver that the recorder calls, if it is not the first one that the program would find.
TRACE_DRIVER_ENV: Final = "REMOTEGPU_TRACE_DRIVER"

# Read by the software GPU.
SOFTGPU_DEVICES_ENV: Final = "REMOTEGPU_SOFTGPU_DEVICES"
SOFTGPU_UUIDS_ENV: Final = "REMOTEGPU_SOFTGPU_UUIDS"
SOFTGPU_MEMORY_ENV: Final = "REMOTEGPU_SOFTGPU_MEMORY"
MANAGED_MEMORY_ENV: Final = "REMOTEGPU_MANAGED_MIB"
SOFTGPU_PROFILE_ENV: Final = "REMOTEGPU_SOFTGPU_PROFILE"
SOFTGPU_THREADS_ENV: Final = "REMOTEGPU_SOFTGPU_THREADS"
# Results that a null GPU writes in place of kernels, and a file that counts their use.
NULL_RULES_ENV: Final = "REMOTEGPU_NULL_RULES"
NULL_TALLY_ENV: Final = "REMOTEGPU_NULL_RULES_TALLY"
# The native software GPU's checks of a program.
CHECK_ENV: Final = "REMOTEGPU_CHECK"

# Read by the CLI and by offload in the user's interpreter: the path of remotegpu.yaml.
CONFIG_ENV: Final = "REMOTEGPU_CONFIG"
# The program remotegpu-connect, if it is not next to the installation.
CONNECT_ENV: Final = "REMOTEGPU_CONNECT"

# The folder of the built programs and libraries.
DIST_ENV: Final = "REMOTEGPU_DIST"

VISIBLE_DEVICES_ENV: Final = "CUDA_VISIBLE_DEVICES"

DEFAULT_LISTEN: Final = "127.0.0.1:7070"

# The operator's account as an appliance in Kubernetes knows it, unless set otherwise.
OPERATOR_ACCOUNT: Final = "remotegpu-system:remotegpu-operator"
