"""Makes the stubs of fedvi/transport/_wire from the .proto files beside it; `make protos` runs it.

Runs in an environment of its own (requirements-protos.lock), since grpcio-tools 1.75.1 asks for
protobuf 6. Code that it generates runs on protobuf 6 and 7; that of newer tools runs on 7 alone.

    python protos/generate.py            writes the stubs
    python protos/generate.py --check    fails if the committed stubs are not what it would write
"""

import importlib.metadata
import importlib.resources
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
STUBS = ROOT.parent / "fedvi" / "transport" / "_wire"
TOOLS = "1.75.1"
INIT = '''"""Generated from protos/ by `make protos`; change the .proto files, never these."""

__all__: list[str] = []
'''


def main(arguments: list[str]) -> int:
    """Writes the stubs, or compares them with what stands there."""
    if arguments not in ([], ["--check"]):
        return fail(f"unknown arguments {arguments}", "give nothing, or --check")
    found = importlib.metadata.version("grpcio-tools")
    if found != TOOLS:
        return fail(f"grpcio-tools is {found}, expected {TOOLS}", "make protos")
    fresh = generate()
    if not arguments:
        STUBS.mkdir(exist_ok=True)
        for path in committed().keys() - fresh.keys():
            (STUBS / path).unlink()
        for path, text in fresh.items():
            (STUBS / path).write_text(text, encoding="utf-8")
        return 0
    old = committed()
    stale = sorted(path for path in fresh.keys() | old.keys() if fresh.get(path) != old.get(path))
    if stale:
        return fail(f"stale stubs in fedvi/transport/_wire: {', '.join(stale)}", "make protos")
    return imports(fresh)


def generate() -> dict[str, str]:
    """Returns file name → text of all stubs."""
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    include = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        outputs = (f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python"))
        if protoc.main(["protoc", f"-I{ROOT}", f"-I{include}", *outputs, *protos]):
            raise SystemExit(1)
        made = [path for path in Path(folder).rglob("*") if path.is_file()]
        stubs = {path.name: rewrite(path) for path in made}
    if len(stubs) != len(made):
        raise SystemExit("two .proto files have the same name, but the stubs share one folder")
    # Of a file without a service the tool writes a module that defines nothing.
    kept = {name: text for name, text in stubs.items() if "_grpc" not in name or "class " in text}
    return {"__init__.py": INIT, **kept}


def rewrite(path: Path) -> str:
    """Moves a stub into our package: `fedvi.v1` as a Python package would hide fedvi itself."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(
        r"^from (fedvi\.v1|grpc\.health\.v1) import",
        "from fedvi.transport._wire import",
        text,
        flags=re.MULTILINE,
    )
    # A second, experimental way to call a service, which nobody takes.
    text = text.partition("\n\n # This class is part of an EXPERIMENTAL API.")[0].rstrip() + "\n"
    if path.name == "health_pb2.py":
        # A pool of its own: grpcio-health-checking, which other packages bring along, defines the
        # same names, and one pool refuses to hold them twice.
        text, count = re.subn(
            r"_descriptor_pool\.Default\(\)", "_descriptor_pool.DescriptorPool()", text
        )
        if count != 1:
            raise SystemExit("health_pb2.py names its pool in another way than before")
    return text


def committed() -> dict[str, str]:
    """Returns file name → text of the stubs that stand in the tree."""
    files = [path for path in STUBS.glob("*") if path.suffix in (".py", ".pyi")]
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def imports(stubs: dict[str, str]) -> int:
    """Imports each stub under this environment's protobuf, with warnings as errors."""
    # By path, since `import fedvi` would want all that fedvi needs.
    lines = [
        "import sys, types",
        "for name in ('fedvi', 'fedvi.transport'):",
        "    sys.modules[name] = types.ModuleType(name)",
        "    sys.modules[name].__path__ = []",
        f"sys.modules['fedvi.transport'].__path__ = [{str(STUBS.parent)!r}]",
        *(
            f"import fedvi.transport._wire.{name.removesuffix('.py')}"
            for name in sorted(stubs)
            if name.endswith(".py") and name != "__init__.py"
        ),
    ]
    ran = subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(lines)], check=False)
    return ran.returncode


def fail(message: str, hint: str) -> int:
    """Says what is wrong, as fedvi's own errors do."""
    sys.stderr.write(f"{message}\n\nhint: {hint}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
