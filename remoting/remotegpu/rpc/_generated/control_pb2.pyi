from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Piece(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Versions(_message.Message):
    __slots__ = ("wire", "table_hash", "program", "oldest")
    WIRE_FIELD_NUMBER: _ClassVar[int]
    TABLE_HASH_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    wire: int
    table_hash: int
    program: str
    oldest: int
    def __init__(self, wire: _Optional[int] = ..., table_hash: _Optional[int] = ..., program: _Optional[str] = ..., oldest: _Optional[int] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("name", "uuid", "memory_bytes", "pci_domain", "pci_bus", "pci_device", "attributes", "gpu_uuid", "peers")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PCI_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    PCI_BUS_FIELD_NUMBER: _ClassVar[int]
    PCI_DEVICE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    memory_bytes: int
    pci_domain: int
    pci_bus: int
    pci_device: int
    attributes: _containers.ScalarMap[int, int]
    gpu_uuid: str
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ..., memory_bytes: _Optional[int] = ..., pci_domain: _Optional[int] = ..., pci_bus: _Optional[int] = ..., pci_device: _Optional[int] = ..., attributes: _Optional[_Mapping[int, int]] = ..., gpu_uuid: _Optional[str] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("device", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    device: int
    attributes: _containers.ScalarMap[int, int]
    def __init__(self, device: _Optional[int] = ..., attributes: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Environment(_message.Message):
    __slots__ = ("name", "backend", "python", "packages", "devices")
    class PackagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    name: str
    backend: str
    python: str
    packages: _containers.ScalarMap[str, str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., backend: _Optional[str] = ..., python: _Optional[str] = ..., packages: _Optional[_Mapping[str, str]] = ..., devices: _Optional[_Iterable[str]] = ...) -> None: ...

class Offload(_message.Message):
    __slots__ = ("environment", "backends", "python", "packages", "allow_skew")
    class PackagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    ALLOW_SKEW_FIELD_NUMBER: _ClassVar[int]
    environment: str
    backends: _containers.RepeatedScalarFieldContainer[str]
    python: str
    packages: _containers.ScalarMap[str, str]
    allow_skew: bool
    def __init__(self, environment: _Optional[str] = ..., backends: _Optional[_Iterable[str]] = ..., python: _Optional[str] = ..., packages: _Optional[_Mapping[str, str]] = ..., allow_skew: _Optional[bool] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("versions", "lease_id", "lease_secret")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    versions: Versions
    lease_id: str
    lease_secret: str
    def __init__(self, versions: _Optional[_Union[Versions, _Mapping]] = ..., lease_id: _Optional[str] = ..., lease_secret: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("versions", "driver_version", "driver_release", "data_port", "devices", "refusal", "tls", "environments", "managed_mib")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRIVER_RELEASE_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    MANAGED_MIB_FIELD_NUMBER: _ClassVar[int]
    versions: Versions
    driver_version: int
    driver_release: str
    data_port: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    refusal: str
    tls: bool
    environments: _containers.RepeatedCompositeFieldContainer[Environment]
    managed_mib: int
    def __init__(self, versions: _Optional[_Union[Versions, _Mapping]] = ..., driver_version: _Optional[int] = ..., driver_release: _Optional[str] = ..., data_port: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., refusal: _Optional[str] = ..., tls: _Optional[bool] = ..., environments: _Optional[_Iterable[_Union[Environment, _Mapping]]] = ..., managed_mib: _Optional[int] = ...) -> None: ...

class OpenLeaseRequest(_message.Message):
    __slots__ = ("versions", "count", "milli", "memory_bytes", "client", "wait", "compute_milli", "compute_limit_milli")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_LIMIT_MILLI_FIELD_NUMBER: _ClassVar[int]
    versions: Versions
    count: int
    milli: int
    memory_bytes: int
    client: str
    wait: bool
    compute_milli: int
    compute_limit_milli: int
    def __init__(self, versions: _Optional[_Union[Versions, _Mapping]] = ..., count: _Optional[int] = ..., milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., client: _Optional[str] = ..., wait: _Optional[bool] = ..., compute_milli: _Optional[int] = ..., compute_limit_milli: _Optional[int] = ...) -> None: ...

class OpenLeaseReply(_message.Message):
    __slots__ = ("waiting", "granted")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    waiting: Waiting
    granted: Granted
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("reason", "ahead", "seconds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    ahead: int
    seconds: float
    def __init__(self, reason: _Optional[str] = ..., ahead: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("lease_id", "lease_secret", "devices", "data_port", "grace_seconds")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    lease_secret: str
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    data_port: int
    grace_seconds: int
    def __init__(self, lease_id: _Optional[str] = ..., lease_secret: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., data_port: _Optional[int] = ..., grace_seconds: _Optional[int] = ...) -> None: ...

class CloseLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "lease_secret")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    lease_secret: str
    def __init__(self, lease_id: _Optional[str] = ..., lease_secret: _Optional[str] = ...) -> None: ...

class CloseLeaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SuspendLeaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class ResumeLeaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class InviteLeaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class InviteLeaseReply(_message.Message):
    __slots__ = ("invitation",)
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    invitation: str
    def __init__(self, invitation: _Optional[str] = ...) -> None: ...

class ReceiveLeaseRequest(_message.Message):
    __slots__ = ("invitation", "versions", "driver_version", "lease_id", "lease_secret", "client", "devices", "sessions", "compute_milli", "compute_limit_milli")
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_LIMIT_MILLI_FIELD_NUMBER: _ClassVar[int]
    invitation: str
    versions: Versions
    driver_version: int
    lease_id: str
    lease_secret: str
    client: str
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    sessions: _containers.RepeatedCompositeFieldContainer[MovingSession]
    compute_milli: int
    compute_limit_milli: int
    def __init__(self, invitation: _Optional[str] = ..., versions: _Optional[_Union[Versions, _Mapping]] = ..., driver_version: _Optional[int] = ..., lease_id: _Optional[str] = ..., lease_secret: _Optional[str] = ..., client: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[MovingSession, _Mapping]]] = ..., compute_milli: _Optional[int] = ..., compute_limit_milli: _Optional[int] = ...) -> None: ...

class MovingSession(_message.Message):
    __slots__ = ("session_id", "ticket", "pid", "process_name", "pod")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    ticket: str
    pid: int
    process_name: str
    pod: str
    def __init__(self, session_id: _Optional[str] = ..., ticket: _Optional[str] = ..., pid: _Optional[int] = ..., process_name: _Optional[str] = ..., pod: _Optional[str] = ...) -> None: ...

class ReceiveLeaseReply(_message.Message):
    __slots__ = ("data_port", "tickets")
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    data_port: int
    tickets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, data_port: _Optional[int] = ..., tickets: _Optional[_Iterable[str]] = ...) -> None: ...

class SettleLeaseRequest(_message.Message):
    __slots__ = ("invitation", "keep")
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    invitation: str
    keep: bool
    def __init__(self, invitation: _Optional[str] = ..., keep: _Optional[bool] = ...) -> None: ...

class SettleLeaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoveLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "to", "invitation", "ca", "server_name")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    to: str
    invitation: str
    ca: bytes
    server_name: str
    def __init__(self, lease_id: _Optional[str] = ..., to: _Optional[str] = ..., invitation: _Optional[str] = ..., ca: _Optional[bytes] = ..., server_name: _Optional[str] = ...) -> None: ...

class ResizeLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "milli", "memory_bytes")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    milli: int
    memory_bytes: int
    def __init__(self, lease_id: _Optional[str] = ..., milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class ResizeLeaseReply(_message.Message):
    __slots__ = ("before_bytes", "memory_bytes")
    BEFORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    before_bytes: int
    memory_bytes: int
    def __init__(self, before_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("waiting", "done")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    waiting: Waiting
    done: Done
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("image_bytes", "seconds")
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    image_bytes: int
    seconds: float
    def __init__(self, image_bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("versions", "lease_id", "lease_secret", "pid", "process_name", "offload", "process")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NAME_FIELD_NUMBER: _ClassVar[int]
    OFFLOAD_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    versions: Versions
    lease_id: str
    lease_secret: str
    pid: int
    process_name: str
    offload: Offload
    process: str
    def __init__(self, versions: _Optional[_Union[Versions, _Mapping]] = ..., lease_id: _Optional[str] = ..., lease_secret: _Optional[str] = ..., pid: _Optional[int] = ..., process_name: _Optional[str] = ..., offload: _Optional[_Union[Offload, _Mapping]] = ..., process: _Optional[str] = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ("session_id", "ticket", "data_port", "refusal", "environment", "grace_seconds", "suspended", "wire", "data_socket", "neighbours")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    DATA_SOCKET_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    ticket: str
    data_port: int
    refusal: str
    environment: Environment
    grace_seconds: int
    suspended: str
    wire: int
    data_socket: str
    neighbours: _containers.RepeatedCompositeFieldContainer[Neighbour]
    def __init__(self, session_id: _Optional[str] = ..., ticket: _Optional[str] = ..., data_port: _Optional[int] = ..., refusal: _Optional[str] = ..., environment: _Optional[_Union[Environment, _Mapping]] = ..., grace_seconds: _Optional[int] = ..., suspended: _Optional[str] = ..., wire: _Optional[int] = ..., data_socket: _Optional[str] = ..., neighbours: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("session_id", "pid", "process")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    pid: int
    process: str
    def __init__(self, session_id: _Optional[str] = ..., pid: _Optional[int] = ..., process: _Optional[str] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id", "lease_secret", "client_ended")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ENDED_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    lease_secret: str
    client_ended: bool
    def __init__(self, session_id: _Optional[str] = ..., lease_secret: _Optional[str] = ..., client_ended: _Optional[bool] = ...) -> None: ...

class CloseSessionReply(_message.Message):
    __slots__ = ("exit_code",)
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    def __init__(self, exit_code: _Optional[int] = ...) -> None: ...

class DeviceStateRequest(_message.Message):
    __slots__ = ("lease_id", "lease_secret")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    lease_secret: str
    def __init__(self, lease_id: _Optional[str] = ..., lease_secret: _Optional[str] = ...) -> None: ...

class DeviceStateReply(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceState]
    def __init__(self, devices: _Optional[_Iterable[_Union[DeviceState, _Mapping]]] = ...) -> None: ...

class DeviceState(_message.Message):
    __slots__ = ("memory_used_bytes", "gpu_utilization_percent", "memory_utilization_percent", "temperature_celsius", "power_milliwatt", "power_limit_milliwatt", "sm_clock_mhz", "memory_clock_mhz", "processes", "pcie_generation", "pcie_width", "pcie_max_generation", "pcie_max_width", "memory_bytes")
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_MILLIWATT_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_MILLIWATT_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    PCIE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    PCIE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    PCIE_MAX_GENERATION_FIELD_NUMBER: _ClassVar[int]
    PCIE_MAX_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    memory_used_bytes: int
    gpu_utilization_percent: int
    memory_utilization_percent: int
    temperature_celsius: int
    power_milliwatt: int
    power_limit_milliwatt: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    pcie_generation: int
    pcie_width: int
    pcie_max_generation: int
    pcie_max_width: int
    memory_bytes: int
    def __init__(self, memory_used_bytes: _Optional[int] = ..., gpu_utilization_percent: _Optional[int] = ..., memory_utilization_percent: _Optional[int] = ..., temperature_celsius: _Optional[int] = ..., power_milliwatt: _Optional[int] = ..., power_limit_milliwatt: _Optional[int] = ..., sm_clock_mhz: _Optional[int] = ..., memory_clock_mhz: _Optional[int] = ..., processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ..., pcie_generation: _Optional[int] = ..., pcie_width: _Optional[int] = ..., pcie_max_generation: _Optional[int] = ..., pcie_max_width: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("pid", "name", "memory_bytes")
    PID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    name: str
    memory_bytes: int
    def __init__(self, pid: _Optional[int] = ..., name: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class InventoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InventoryReply(_message.Message):
    __slots__ = ("gpus", "leases", "versions", "driver_version", "backend", "draining", "appliance", "environments", "compute_mode", "opens_no_session", "unserved", "claims_unknown")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    APPLIANCE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MODE_FIELD_NUMBER: _ClassVar[int]
    OPENS_NO_SESSION_FIELD_NUMBER: _ClassVar[int]
    UNSERVED_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    versions: Versions
    driver_version: int
    backend: str
    draining: bool
    appliance: str
    environments: _containers.RepeatedCompositeFieldContainer[Environment]
    compute_mode: str
    opens_no_session: str
    unserved: _containers.RepeatedCompositeFieldContainer[Unserved]
    claims_unknown: bool
    def __init__(self, gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., versions: _Optional[_Union[Versions, _Mapping]] = ..., driver_version: _Optional[int] = ..., backend: _Optional[str] = ..., draining: _Optional[bool] = ..., appliance: _Optional[str] = ..., environments: _Optional[_Iterable[_Union[Environment, _Mapping]]] = ..., compute_mode: _Optional[str] = ..., opens_no_session: _Optional[str] = ..., unserved: _Optional[_Iterable[_Union[Unserved, _Mapping]]] = ..., claims_unknown: _Optional[bool] = ...) -> None: ...

class Unserved(_message.Message):
    __slots__ = ("lease_id", "why")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    why: str
    def __init__(self, lease_id: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "uuid", "name", "total_bytes", "shareable_bytes", "leased_bytes", "used_bytes", "healthy", "health_message", "guaranteed_milli")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHAREABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    HEALTH_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GUARANTEED_MILLI_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    name: str
    total_bytes: int
    shareable_bytes: int
    leased_bytes: int
    used_bytes: int
    healthy: bool
    health_message: str
    guaranteed_milli: int
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., total_bytes: _Optional[int] = ..., shareable_bytes: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., healthy: _Optional[bool] = ..., health_message: _Optional[str] = ..., guaranteed_milli: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "client", "gpus", "memory_bytes", "used_bytes", "sessions", "age_seconds", "claim", "claim_uid", "places", "host_bytes", "suspended", "image_bytes", "problem", "arriving", "compute_limit_milli")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    CLAIM_UID_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ARRIVING_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_LIMIT_MILLI_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    client: str
    gpus: _containers.RepeatedScalarFieldContainer[int]
    memory_bytes: int
    used_bytes: int
    sessions: int
    age_seconds: float
    claim: str
    claim_uid: str
    places: _containers.RepeatedCompositeFieldContainer[Place]
    host_bytes: int
    suspended: str
    image_bytes: int
    problem: str
    arriving: bool
    compute_limit_milli: int
    def __init__(self, lease_id: _Optional[str] = ..., client: _Optional[str] = ..., gpus: _Optional[_Iterable[int]] = ..., memory_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., age_seconds: _Optional[float] = ..., claim: _Optional[str] = ..., claim_uid: _Optional[str] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., host_bytes: _Optional[int] = ..., suspended: _Optional[str] = ..., image_bytes: _Optional[int] = ..., problem: _Optional[str] = ..., arriving: _Optional[bool] = ..., compute_limit_milli: _Optional[int] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("gpu", "leased_bytes", "used_bytes", "compute_milli", "gpu_nanoseconds")
    GPU_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MILLI_FIELD_NUMBER: _ClassVar[int]
    GPU_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    leased_bytes: int
    used_bytes: int
    compute_milli: int
    gpu_nanoseconds: int
    def __init__(self, gpu: _Optional[str] = ..., leased_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., compute_milli: _Optional[int] = ..., gpu_nanoseconds: _Optional[int] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("ready", "checks")
    READY_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    def __init__(self, ready: _Optional[bool] = ..., checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("name", "status", "message", "fix")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    name: str
    status: str
    message: str
    fix: str
    def __init__(self, name: _Optional[str] = ..., status: _Optional[str] = ..., message: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("deadline_seconds",)
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    deadline_seconds: float
    def __init__(self, deadline_seconds: _Optional[float] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    def __init__(self, sessions: _Optional[int] = ...) -> None: ...
