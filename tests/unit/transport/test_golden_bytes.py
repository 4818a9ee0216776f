"""The bytes of the operators' port and of files that travel by hand: a change breaks what is deployed.

Those of the clients' port are in `test_wire.py`.
"""

import pytest

from fedvi.transport._wire import admin_pb2, parcels_pb2

GOLDEN = {
    "AdmitClientRequest": "0a06636c69656e74",
    "Board": "08c901120132",
    "ClientRow": (
        "0a046e616d651205737461746518af0220b0022a077461736b5f69643100000000000019403900000000"
        "00001d4040b4024a0b6c65646765725f686173685206726561736f6e59000000000080264060b8026900"
        "00000000802a407001"
    ),
    "GetRunRequest": "",
    "PauseRunRequest": "",
    "RemoveClientRequest": "0a06636c69656e74",
    "ResultFile": (
        "0a340a06636c69656e74120c73747564795f6469676573741a0908ad0212046861736820cc0128cd0132"
        "08736f6674776172653a013712450a06636c69656e7412077461736b5f696418af02222c0a1a0a046e61"
        "6d65120564747970651a02af0221000000000000114012056576656e741a013320b0022a013528b102"
    ),
    "ResumeRunRequest": "",
    "Run": (
        "0a057374756479120c73747564795f6469676573741a08736f66747761726522067374617475732a0672"
        "6561736f6e30b20238b30240b40249000000000080224051000000000080244059000000000080264060"
        "016a5d0a046e616d651205737461746518af0220b0022a077461736b5f69643100000000000019403900"
        "00000000001d4040b4024a0b6c65646765725f686173685206726561736f6e59000000000080264060b8"
        "02690000000000802a40700172087363686564756c657a07617761697465648101000000000040304089"
        "01000000000040314092011608ad0210ae021a087363686564756c6520b00228b1029a01066c65745f676f"
    ),
    "RunEvent": "08ad021100000000000002401a046b696e642206636c69656e742a0474657874",
    "Stage": "08ad0210ae021a087363686564756c6520b00228b102",
    "StopRunRequest": "",
    "TaskFile": (
        "0a06636c69656e74120c73747564795f6469676573741a1e08ad02120908ad0212046861736818cb0122"
        "08736f66747761726528b10222066c65646765722ac4010ac1010a077461736b5f69641206636c69656e"
        "7418af0220b002290000000000001540322c0a1a0a046e616d65120564747970651a02af022100000000"
        "0000114012056576656e741a013320b0022a01353a2c0a1a0a046e616d65120564747970651a02af0221"
        "000000000000114012056576656e741a013320b0022a01354100000000008020404a3a0a080000000000"
        "00f43f1208000000000000024018af022100000000000011402900000000000015403100000000000019"
        "40380140b40248b502320608c901120132"
    ),
    "WatchRunRequest": "08ad021001",
}
MESSAGES = {
    name: getattr(module, name)
    for module in (admin_pb2, parcels_pb2)
    for name in module.DESCRIPTOR.message_types_by_name
}


def filled(message):
    """A message whose every field holds a value that follows from its number."""
    result = message()
    for field in message.DESCRIPTOR.fields:
        value = {
            field.CPPTYPE_STRING: b"%d" % field.number
            if field.type == field.TYPE_BYTES
            else f"{field.name}",
            field.CPPTYPE_UINT64: field.number + 300,
            field.CPPTYPE_UINT32: field.number + 200,
            field.CPPTYPE_DOUBLE: field.number + 0.25,
            field.CPPTYPE_BOOL: True,
            field.CPPTYPE_ENUM: 1,
        }.get(field.cpp_type)
        # One of a choice; an optional field is a choice of its own.
        if field.containing_oneof is not None and field.containing_oneof.fields[0] is not field:
            continue
        if field.message_type is not None:
            inner = filled(field.message_type._concrete_class)
            if field.is_repeated:
                getattr(result, field.name).append(inner)
            else:
                getattr(result, field.name).CopyFrom(inner)
        elif field.is_repeated:
            getattr(result, field.name).append(value)
        else:
            setattr(result, field.name, value)
    return result


def test_every_message_has_its_bytes():
    assert sorted(GOLDEN) == sorted(MESSAGES)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_the_bytes_of_a_message_stay_what_they_are(name):
    sample = filled(MESSAGES[name])
    assert sample.SerializeToString(deterministic=True).hex() == GOLDEN[name]
    assert MESSAGES[name].FromString(bytes.fromhex(GOLDEN[name])) == sample
