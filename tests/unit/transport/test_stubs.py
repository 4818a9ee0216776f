"""The generated stubs: usable beside what other packages bring along, and without JAX."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STUBS = sorted(path.stem for path in (ROOT / "fedvi/transport/_wire").glob("*_pb2*.py"))
IMPORTS = "\n".join(f"import fedvi.transport._wire.{name}" for name in STUBS)


def run(script):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def test_there_are_stubs_of_all_services_and_of_files():
    services = ("admin", "federation", "health")
    stubs = [f"{name}_pb2{kind}" for name in services for kind in ("", "_grpc")]
    assert [*stubs, "parcels_pb2"] == STUBS


def test_the_wire_is_imported_without_jax():
    done = run(f"{IMPORTS}\nimport sys\nassert 'jax' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_the_health_service_of_another_package_may_be_loaded_first():
    """Flower brings grpcio-health-checking, whose file has another name and the same messages."""
    done = run(
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "file = descriptor_pb2.FileDescriptorProto(\n"
        "    name='grpc_health/v1/health.proto', package='grpc.health.v1', syntax='proto3')\n"
        "file.message_type.add(name='HealthCheckRequest')\n"
        "file.message_type.add(name='HealthCheckResponse')\n"
        "descriptor_pool.Default().AddSerializedFile(file.SerializeToString())\n"
        f"{IMPORTS}\n"
        "from fedvi.transport._wire import health_pb2\n"
        "assert health_pb2.HealthCheckRequest(service='x').SerializeToString() == b'\\n\\1x'\n"
    )
    assert done.returncode == 0, done.stderr
