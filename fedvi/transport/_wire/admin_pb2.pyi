from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveClientRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: str
    def __init__(self, client: _Optional[str] = ...) -> None: ...

class AdmitClientRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: str
    def __init__(self, client: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("study", "study_digest", "software", "status", "reason", "version", "rounds", "rounds_planned", "gap", "damping", "uptime_seconds", "tls", "clients", "schedule", "awaited", "deadline_seconds", "epsilon_budget", "stage", "let_go")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    STUDY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    DAMPING_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPSILON_BUDGET_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    study: str
    study_digest: str
    software: str
    status: str
    reason: str
    version: int
    rounds: int
    rounds_planned: int
    gap: float
    damping: float
    uptime_seconds: float
    tls: bool
    clients: _containers.RepeatedCompositeFieldContainer[ClientRow]
    schedule: str
    awaited: _containers.RepeatedScalarFieldContainer[str]
    deadline_seconds: float
    epsilon_budget: float
    stage: Stage
    let_go: str
    def __init__(self, study: _Optional[str] = ..., study_digest: _Optional[str] = ..., software: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., version: _Optional[int] = ..., rounds: _Optional[int] = ..., rounds_planned: _Optional[int] = ..., gap: _Optional[float] = ..., damping: _Optional[float] = ..., uptime_seconds: _Optional[float] = ..., tls: bool = ..., clients: _Optional[_Iterable[_Union[ClientRow, _Mapping]]] = ..., schedule: _Optional[str] = ..., awaited: _Optional[_Iterable[str]] = ..., deadline_seconds: _Optional[float] = ..., epsilon_budget: _Optional[float] = ..., stage: _Optional[_Union[Stage, _Mapping]] = ..., let_go: _Optional[str] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("number", "stages", "schedule", "round", "rounds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    stages: int
    schedule: str
    round: int
    rounds: int
    def __init__(self, number: _Optional[int] = ..., stages: _Optional[int] = ..., schedule: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ...) -> None: ...

class ClientRow(_message.Message):
    __slots__ = ("name", "state", "visits", "turns", "task_id", "seen_seconds", "epsilon", "ledger_count", "ledger_hash", "reason", "delta", "charged", "usual_seconds", "silent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VISITS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SEEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    LEDGER_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_HASH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    USUAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    visits: int
    turns: int
    task_id: str
    seen_seconds: float
    epsilon: float
    ledger_count: int
    ledger_hash: str
    reason: str
    delta: float
    charged: int
    usual_seconds: float
    silent: bool
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., visits: _Optional[int] = ..., turns: _Optional[int] = ..., task_id: _Optional[str] = ..., seen_seconds: _Optional[float] = ..., epsilon: _Optional[float] = ..., ledger_count: _Optional[int] = ..., ledger_hash: _Optional[str] = ..., reason: _Optional[str] = ..., delta: _Optional[float] = ..., charged: _Optional[int] = ..., usual_seconds: _Optional[float] = ..., silent: bool = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("cursor", "once")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    once: bool
    def __init__(self, cursor: _Optional[int] = ..., once: bool = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("cursor", "time", "kind", "client", "text")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    time: float
    kind: str
    client: str
    text: str
    def __init__(self, cursor: _Optional[int] = ..., time: _Optional[float] = ..., kind: _Optional[str] = ..., client: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
