from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiptStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECEIPT_STATUS_UNSPECIFIED: _ClassVar[ReceiptStatus]
    RECEIPT_STATUS_ACCEPTED: _ClassVar[ReceiptStatus]
    RECEIPT_STATUS_DUPLICATE: _ClassVar[ReceiptStatus]
    RECEIPT_STATUS_CONFLICT: _ClassVar[ReceiptStatus]

class FailureCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CODE_UNSPECIFIED: _ClassVar[FailureCode]
    FAILURE_CODE_BUDGET: _ClassVar[FailureCode]
    FAILURE_CODE_POLICY: _ClassVar[FailureCode]
    FAILURE_CODE_DATA: _ClassVar[FailureCode]
    FAILURE_CODE_SOLVER: _ClassVar[FailureCode]
    FAILURE_CODE_OTHER: _ClassVar[FailureCode]

class TaskStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATUS_UNSPECIFIED: _ClassVar[TaskStatus]
    TASK_STATUS_UNKNOWN: _ClassVar[TaskStatus]
    TASK_STATUS_OPEN: _ClassVar[TaskStatus]
    TASK_STATUS_ACCEPTED: _ClassVar[TaskStatus]
    TASK_STATUS_CONFLICT: _ClassVar[TaskStatus]
RECEIPT_STATUS_UNSPECIFIED: ReceiptStatus
RECEIPT_STATUS_ACCEPTED: ReceiptStatus
RECEIPT_STATUS_DUPLICATE: ReceiptStatus
RECEIPT_STATUS_CONFLICT: ReceiptStatus
FAILURE_CODE_UNSPECIFIED: FailureCode
FAILURE_CODE_BUDGET: FailureCode
FAILURE_CODE_POLICY: FailureCode
FAILURE_CODE_DATA: FailureCode
FAILURE_CODE_SOLVER: FailureCode
FAILURE_CODE_OTHER: FailureCode
TASK_STATUS_UNSPECIFIED: TaskStatus
TASK_STATUS_UNKNOWN: TaskStatus
TASK_STATUS_OPEN: TaskStatus
TASK_STATUS_ACCEPTED: TaskStatus
TASK_STATUS_CONFLICT: TaskStatus

class Anchor(_message.Message):
    __slots__ = ("count", "hash")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    count: int
    hash: str
    def __init__(self, count: _Optional[int] = ..., hash: _Optional[str] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "scale")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    scale: float
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., scale: _Optional[float] = ...) -> None: ...

class PayloadRef(_message.Message):
    __slots__ = ("tensors", "event", "sha256", "size", "inline")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    event: str
    sha256: bytes
    size: int
    inline: bytes
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., event: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., inline: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("client", "study_digest", "anchor", "protocol_min", "protocol_max", "software", "session")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    STUDY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    client: str
    study_digest: str
    anchor: Anchor
    protocol_min: int
    protocol_max: int
    software: str
    session: bytes
    def __init__(self, client: _Optional[str] = ..., study_digest: _Optional[str] = ..., anchor: _Optional[_Union[Anchor, _Mapping]] = ..., protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., software: _Optional[str] = ..., session: _Optional[bytes] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("version", "anchor", "protocol", "software", "payload_limit")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_LIMIT_FIELD_NUMBER: _ClassVar[int]
    version: int
    anchor: Anchor
    protocol: int
    software: str
    payload_limit: int
    def __init__(self, version: _Optional[int] = ..., anchor: _Optional[_Union[Anchor, _Mapping]] = ..., protocol: _Optional[int] = ..., software: _Optional[str] = ..., payload_limit: _Optional[int] = ...) -> None: ...

class NextTaskRequest(_message.Message):
    __slots__ = ("client", "wait_seconds", "session", "part", "without_factor")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FACTOR_FIELD_NUMBER: _ClassVar[int]
    client: str
    wait_seconds: float
    session: bytes
    part: KeyPart
    without_factor: bool
    def __init__(self, client: _Optional[str] = ..., wait_seconds: _Optional[float] = ..., session: _Optional[bytes] = ..., part: _Optional[_Union[KeyPart, _Mapping]] = ..., without_factor: bool = ...) -> None: ...

class KeyPart(_message.Message):
    __slots__ = ("stage", "content", "epoch")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    stage: int
    content: bytes
    epoch: int
    def __init__(self, stage: _Optional[int] = ..., content: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "client", "visit", "version", "damping", "posterior", "factor", "lease_seconds", "coordinates")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    VISIT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DAMPING_FIELD_NUMBER: _ClassVar[int]
    POSTERIOR_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    client: str
    visit: int
    version: int
    damping: float
    posterior: PayloadRef
    factor: PayloadRef
    lease_seconds: float
    coordinates: Coordinates
    def __init__(self, task_id: _Optional[str] = ..., client: _Optional[str] = ..., visit: _Optional[int] = ..., version: _Optional[int] = ..., damping: _Optional[float] = ..., posterior: _Optional[_Union[PayloadRef, _Mapping]] = ..., factor: _Optional[_Union[PayloadRef, _Mapping]] = ..., lease_seconds: _Optional[float] = ..., coordinates: _Optional[_Union[Coordinates, _Mapping]] = ...) -> None: ...

class Coordinates(_message.Message):
    __slots__ = ("centre", "scale", "constant", "spread", "level", "residual", "sizes", "blocks", "baselines")
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BASELINES_FIELD_NUMBER: _ClassVar[int]
    centre: _containers.RepeatedScalarFieldContainer[float]
    scale: _containers.RepeatedScalarFieldContainer[float]
    constant: int
    spread: float
    level: float
    residual: float
    sizes: bool
    blocks: int
    baselines: int
    def __init__(self, centre: _Optional[_Iterable[float]] = ..., scale: _Optional[_Iterable[float]] = ..., constant: _Optional[int] = ..., spread: _Optional[float] = ..., level: _Optional[float] = ..., residual: _Optional[float] = ..., sizes: bool = ..., blocks: _Optional[int] = ..., baselines: _Optional[int] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("parts", "epoch")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    epoch: int
    def __init__(self, parts: _Optional[_Iterable[bytes]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("reason", "resumable")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    resumable: bool
    def __init__(self, reason: _Optional[str] = ..., resumable: bool = ...) -> None: ...

class NextTaskReply(_message.Message):
    __slots__ = ("task", "wait", "done")
    TASK_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    task: Task
    wait: Wait
    done: Done
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ...) -> None: ...

class GetPayloadRequest(_message.Message):
    __slots__ = ("client", "sha256", "offset", "session")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    client: str
    sha256: bytes
    offset: int
    session: bytes
    def __init__(self, client: _Optional[str] = ..., sha256: _Optional[bytes] = ..., offset: _Optional[int] = ..., session: _Optional[bytes] = ...) -> None: ...

class SubmitHeader(_message.Message):
    __slots__ = ("client", "task_id", "attempt", "payload", "offset")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    client: str
    task_id: str
    attempt: int
    payload: PayloadRef
    offset: int
    def __init__(self, client: _Optional[str] = ..., task_id: _Optional[str] = ..., attempt: _Optional[int] = ..., payload: _Optional[_Union[PayloadRef, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class SubmitPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: SubmitHeader
    chunk: Chunk
    def __init__(self, header: _Optional[_Union[SubmitHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("status", "version", "anchor")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    status: ReceiptStatus
    version: int
    anchor: Anchor
    def __init__(self, status: _Optional[_Union[ReceiptStatus, str]] = ..., version: _Optional[int] = ..., anchor: _Optional[_Union[Anchor, _Mapping]] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("client", "task_id", "session")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    client: str
    task_id: str
    session: bytes
    def __init__(self, client: _Optional[str] = ..., task_id: _Optional[str] = ..., session: _Optional[bytes] = ...) -> None: ...

class RenewLeaseReply(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: bool
    def __init__(self, held: bool = ...) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("client", "task_id", "code", "session")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    client: str
    task_id: str
    code: FailureCode
    session: bytes
    def __init__(self, client: _Optional[str] = ..., task_id: _Optional[str] = ..., code: _Optional[_Union[FailureCode, str]] = ..., session: _Optional[bytes] = ...) -> None: ...

class ReportFailureReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueryTaskRequest(_message.Message):
    __slots__ = ("client", "task_id", "sha256", "session")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    client: str
    task_id: str
    sha256: bytes
    session: bytes
    def __init__(self, client: _Optional[str] = ..., task_id: _Optional[str] = ..., sha256: _Optional[bytes] = ..., session: _Optional[bytes] = ...) -> None: ...

class QueryTaskReply(_message.Message):
    __slots__ = ("status", "received")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    status: TaskStatus
    received: int
    def __init__(self, status: _Optional[_Union[TaskStatus, str]] = ..., received: _Optional[int] = ...) -> None: ...

class GoodbyeRequest(_message.Message):
    __slots__ = ("client", "session")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    client: str
    session: bytes
    def __init__(self, client: _Optional[str] = ..., session: _Optional[bytes] = ...) -> None: ...

class GoodbyeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "hint", "retryable")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    hint: str
    retryable: bool
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., retryable: bool = ...) -> None: ...
