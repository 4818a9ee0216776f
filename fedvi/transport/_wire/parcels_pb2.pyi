from fedvi.transport._wire import federation_pb2 as _federation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskFile(_message.Message):
    __slots__ = ("client", "study_digest", "hello", "ledger", "reply", "boards")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    STUDY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    BOARDS_FIELD_NUMBER: _ClassVar[int]
    client: str
    study_digest: str
    hello: _federation_pb2.HelloReply
    ledger: _containers.RepeatedScalarFieldContainer[str]
    reply: _federation_pb2.NextTaskReply
    boards: _containers.RepeatedCompositeFieldContainer[Board]
    def __init__(self, client: _Optional[str] = ..., study_digest: _Optional[str] = ..., hello: _Optional[_Union[_federation_pb2.HelloReply, _Mapping]] = ..., ledger: _Optional[_Iterable[str]] = ..., reply: _Optional[_Union[_federation_pb2.NextTaskReply, _Mapping]] = ..., boards: _Optional[_Iterable[_Union[Board, _Mapping]]] = ...) -> None: ...

class Board(_message.Message):
    __slots__ = ("stage", "parts")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    stage: int
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, stage: _Optional[int] = ..., parts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ResultFile(_message.Message):
    __slots__ = ("hello", "submit", "failure", "keys")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    hello: _federation_pb2.HelloRequest
    submit: _federation_pb2.SubmitHeader
    failure: _federation_pb2.ReportFailureRequest
    keys: _federation_pb2.NextTaskRequest
    def __init__(self, hello: _Optional[_Union[_federation_pb2.HelloRequest, _Mapping]] = ..., submit: _Optional[_Union[_federation_pb2.SubmitHeader, _Mapping]] = ..., failure: _Optional[_Union[_federation_pb2.ReportFailureRequest, _Mapping]] = ..., keys: _Optional[_Union[_federation_pb2.NextTaskRequest, _Mapping]] = ...) -> None: ...
