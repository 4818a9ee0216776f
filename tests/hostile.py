"""Mutated files that try to run code, and what reading them did: `python -m tests.hostile FAMILY FOLDER`.

A process of its own, since an audit hook cannot be taken away again. It runs a family of commands on
unchanged files, then on mutated ones, and prints as JSON what the latter did that the former had not.
"""

import copy
import importlib
import io
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from tests.plug_ins import declare
from tests.studies import raw_study

__all__ = ["FAMILIES", "corpus", "install", "main"]

# What somebody who sends a file might name. Each import or call of these leaves a trace that is looked for.
ADDRESSES = (
    "os:system", "posix:system", "subprocess:run", "subprocess:Popen", "builtins:exec", "builtins:eval",
    "importlib:import_module", "runpy:run_path", "antigravity:fly_or_die", "this:s", "code:interact",
    "pty:spawn", "socket:create_connection", "urllib.request:urlopen", "webbrowser:open", "ctypes:CDLL",
    "hostile_module:run", "fedvi.cli.main:main", "fedvi.models.glm:logistic", "hostile_module:Run.again",
)  # fmt: skip
# An installed plug-in that nobody allowed, and names that Python would resolve to something.
NAMES = ("hostile", "__import__", "os.system", "__class__", "hostile_module")
PAYLOADS = (*ADDRESSES, *NAMES)
# Where a study names what is made.
PLACES: tuple[tuple[str | int, ...], ...] = (
    ("model", "kind"), ("family", "kind"), ("solver", "kind"), ("solver", "sampler"),
    ("solver", "sampler", "kind"), ("schedule", "kind"), ("schedule", "stages", 0, "kind"),
    ("privacy", "mechanism"), ("privacy", "accountant"),
)  # fmt: skip
ARGUMENTS = {
    "command": "id > PWNED",
    "args": ["id"],
    "source": "open('PWNED', 'w')",
    "path": "PWNED",
}
GROUPS = ("models", "families", "solvers", "schedules", "samplers", "mechanisms", "commands")
MODULE = (
    "open('PWNED', 'w')\ndef run(*args, **kw): open('PWNED', 'w')\nclass Run:\n    again = run\n"
)

_WATCHED = (
    "import",
    "os.",
    "pickle.",
    "pty.",
    "socket.",
    "subprocess.",
    "urllib.",
    "webbrowser.",
    "ctypes.",
)
# Of `os`, what starts a process; files are read and listed by every command.
_OF_OS = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
)


def install(folder: Path) -> None:
    """Puts a hostile module, and a plug-in of it in every group, where Python finds them."""
    (folder / "hostile_module.py").write_text(MODULE)
    declare(folder, **{group: {"hostile": "hostile_module:run"} for group in GROUPS})


def study() -> dict[str, Any]:
    return raw_study(
        ["north", "south"],
        2,
        solver={"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0, "noise_multiplier": 50.0},
        privacy={"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
    ) | {"data": {"max_records": 50, "schema": _columns()}}


def _columns() -> dict[str, Any]:
    number = {"type": "number", "bounds": [-9, 9], "center": 0, "scale": 1}
    return {"y": number, "x0": number, "x1": number}


def changed(raw: dict[str, Any], place: tuple[str | int, ...], payload: str) -> dict[str, Any]:
    """Returns a study that names the payload at a place, with arguments that it might be called with."""
    found = copy.deepcopy(raw)
    table: Any = found
    for part in place[:-1]:
        if part == "stages":
            table.clear()
            table |= {"kind": "scripted", "stages": [{"rounds": 1}]}
        if part == "sampler":
            table["sampler"] = {}
        table = table[part]
    if place in (("privacy", "mechanism"), ("privacy", "accountant")) or place[-1] == "sampler":
        table[place[-1]] = payload
        return found
    kept = {key: table[key] for key in ("rounds", "formula") if key in table}
    table.clear()
    table |= {**kept, place[-1]: payload, **ARGUMENTS}
    return found


def corpus() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields name → mutated study: every place times every payload, and formulas that would be code."""
    for place in PLACES:
        for payload in PAYLOADS:
            yield ".".join(map(str, place)) + " = " + payload, changed(study(), place, payload)
    for formula in (
        "y ~ __import__('os').system('id > PWNED')", "y ~ I(open('PWNED', 'w'))", "y ~ os.system(x0)",
        "__import__('hostile_module') ~ x0", "y ~ {open('PWNED', 'w')}", "y ~ eval(x0)",
        "y ~ bs(x0, df=open)",
    ):  # fmt: skip
        raw = study()
        raw["model"]["formula"] = formula
        yield f"formula = {formula}", raw
    for key in ("function", "outcome", "link", "response"):
        raw = study()
        raw["model"] |= {"kind": "numpyro_model", key: "hostile_module:run"}
        yield f"numpyro_model {key}", raw


class Watch:
    """Records imports, processes and sockets while commands run.

    ``importlib.import_module`` raises no event of its own, so that modules are compared as well.
    """

    def __init__(self) -> None:
        self.on, self.seen = False, set[str]()
        sys.addaudithook(self._hook)

    def during(self, main: Any, arguments: list[Any]) -> tuple[set[str], Any]:
        """Runs a command; returns what it did, and its end."""
        before = set(sys.modules)
        self.seen, self.on = set(), True
        done = _invoke(main, arguments)
        self.on = False
        return self.seen | {f"module {name}" for name in set(sys.modules) - before}, done

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or not event.startswith(_WATCHED):
            return
        if event.startswith("os.") and not event.startswith(_OF_OS):
            return
        self.seen.add(f"{event} {arguments[0]!r:.200}" if arguments else event)


def pickled() -> bytes:
    """A NumPy file of an object array, whose loading would call `os.system`."""

    class Hostile:
        def __reduce__(self) -> Any:
            return importlib.import_module("os").system, ("id > PWNED",)

    file = io.BytesIO()
    np.savez(file, h=np.array([Hostile()], dtype=object), names=np.array(["a"]))
    return file.getvalue()


def _invoke(main: Any, arguments: list[Any]) -> Any:
    return CliRunner().invoke(main, [str(item) for item in arguments])


Commands = list[list[Any]]


def studies(folder: Path) -> tuple[Commands, list[tuple[str, Commands]]]:
    """Every command that reads a study file, on TOML and on JSON."""

    allowed = ("--allow-unprotected", "--allow-simulated-noise")

    def commands(path: Path) -> Commands:
        return [
            ["check", path], ["privacy", path], ["plan", path], ["audit", path, "--seconds", "0.001"],
            ["simulate", path, "--quiet"], ["sweep", path, "--out", folder / "swept"],
            ["client", path, "--as", "north", "--server", "127.0.0.1:9", "--insecure", *allowed],
            ["server", path, "--listen", "127.0.0.1:0", "--insecure", "--state", folder / "state"],
            ["export", path, "--to", folder / "out", "--tls", tls, "--state", folder / "run"],
            ["import", path, folder / "north.csv", "--tls", tls, "--state", folder / "run"],
            ["doctor", path, "--server", "127.0.0.1:9"],
            ["data", "inspect", path, "--data", folder / "north.csv"],
            ["ledger", "verify", folder / "books", "--transcript", folder, "--study", path],
        ]  # fmt: skip

    from fedvi.privacy import ledger
    from tests.pki import authority_in, party

    root = authority_in(folder / "ca")
    party(root, "server", "server", ("localhost",))
    tls = root.parent / "server"
    (folder / "north.csv").write_text("y,x0,x1\n1,2,3\n")
    (folder / "books").mkdir()
    header = ledger.Header(
        "test", "0" * 64, "north", "record", "substitute", "message", protected=False
    )
    lines = ledger.to_lines(ledger.open_ledger(header))
    (folder / "books" / "north.jsonl").write_text("\n".join(lines) + "\n")
    known, made = folder / "known.json", []
    known.write_text(json.dumps(study()))
    misspelt = folder / "misspelt.json"
    misspelt.write_text(json.dumps(changed(study(), ("solver", "kind"), "dp_optimisatoin")))
    # What serves, waits or computes for long is no baseline: its refusals may do no more than these.
    baseline = [
        item for item in commands(known) if item[0] not in ("server", "client", "simulate", "sweep")
    ]
    for number, (name, raw) in enumerate(corpus()):
        path = folder / f"mutated-{number}.{'json' if number % 2 else 'toml'}"
        path.write_text(json.dumps(raw, indent=1) if number % 2 else _toml(raw))
        made.append((name, commands(path)))
    return baseline + commands(misspelt), made


def results(folder: Path) -> tuple[Commands, list[tuple[str, Commands]]]:
    """Every command that reads the folder of a run, with a mutated study, posterior or plan in it."""
    from fedvi.cli import _results
    from fedvi.run import server_plan
    from fedvi.server.core import protocol
    from fedvi.study import build
    from fedvi.study.config import parse_study

    def run(name: str, raw: dict[str, Any]) -> Path:
        place = folder / name
        place.mkdir()
        plan = server_plan.make(build.assemble(parse_study(raw)))
        server_plan.keep(plan, place)
        spec = server_plan.to_spec(plan)
        _results.write(plan, spec, protocol.initial_state(spec), place)
        return place

    def commands(place: Path) -> Commands:
        new, out = folder / "new.csv", place / "out"
        return [
            ["report", place], ["posterior", place, "--to", out.with_suffix(".npz")],
            ["predict", place, new, "--out", out.with_suffix(".csv")], ["evaluate", place, new],
            ["synthesise", place, "--given", new, "--out", out.with_suffix(".made.csv")],
            ["status", place],
        ]  # fmt: skip

    statistics = study() | {"solver": {"kind": "vips", "clip_norm": 1.0, "noise_multiplier": 50.0}}
    plain, of_sums = run("plain", study()), run("sums", statistics)
    (folder / "new.csv").write_text("y,x0,x1\n1,2,3\n")
    made: list[tuple[str, Commands]] = []

    def mutated(name: str, base: Path, change: Callable[[dict[str, Any]], object]) -> None:
        place = folder / f"run-{len(made)}"
        (place / "result").mkdir(parents=True)
        for file in (base / "result").iterdir():
            (place / "result" / file.name).write_bytes(file.read_bytes())
        content = json.loads((base / "plan.json").read_text())
        change(content)
        content["sha256"] = server_plan._sha256(content)
        (place / "plan.json").write_text(json.dumps(content))
        # A server takes a plan that fits its study, and starts no process then.
        state = ["--listen", "127.0.0.1:0", "--insecure", "--state", place]
        path = place / "its-study.json"
        path.write_text(json.dumps(content["study"]))
        made.append((f"plan: {name}", [*commands(place), ["server", path, *state]]))

    for payload in PAYLOADS:
        mutated(
            f"finish {payload}",
            plain,
            lambda c, p=payload: _finish(c, {"function": p, "arguments": ARGUMENTS}),
        )
        mutated(
            f"stand {payload}",
            of_sums,
            lambda c, p=payload: c.update(stand={"function": p, "arguments": {}}),
        )
        table = {"model": payload, "fields": dict(ARGUMENTS)}
        mutated(
            f"model {payload}", of_sums, lambda c, t=table: c["stand"]["arguments"].update(model=t)
        )
        mutated(f"study {payload}", plain, lambda c, p=payload: c["study"]["family"].update(kind=p))
    mutated(
        "argument",
        plain,
        lambda c: _finish(c, {"function": "finish_whitened", "arguments": ARGUMENTS}),
    )
    # A finished simulation: study.json beside result.json.
    for place in PLACES:
        for payload in ("os:system", "hostile_module:run", "hostile"):
            base = folder / f"simulated-{len(made)}"
            base.mkdir()
            for file in (plain / "result").iterdir():
                (base / file.name).write_bytes(file.read_bytes())
            (base / "study.json").write_text(json.dumps(changed(study(), place, payload)))
            made.append((f"result: {'.'.join(map(str, place))} = {payload}", commands(base)))
    base = folder / "pickled"
    (base / "result").mkdir(parents=True)
    (base / "plan.json").write_bytes((plain / "plan.json").read_bytes())
    for file in (plain / "result").iterdir():
        (base / "result" / file.name).write_bytes(file.read_bytes())
    (base / "result" / "posterior.npz").write_bytes(pickled())
    made.append(("result: a pickle among the arrays", commands(base)))
    misspelt = folder / "misspelt"
    misspelt.mkdir()
    for file in (plain / "result").iterdir():
        (misspelt / file.name).write_bytes(file.read_bytes())
    raw = changed(study(), ("solver", "kind"), "dp_optimisatoin")
    (misspelt / "study.json").write_text(json.dumps(raw))
    broken = folder / "broken"
    broken.mkdir()
    (broken / "plan.json").write_text("{}")
    refused = ["server", plain / "absent.json", "--insecure", "--state", folder / "nowhere"]
    serves = [
        folder / "known.json",
        "--listen",
        "nowhere",
        "--insecure",
        "--state",
        folder / "nowhere",
    ]
    (folder / "known.json").write_text(json.dumps(study()))
    baseline = [*commands(plain), *commands(of_sums), *commands(misspelt), *commands(broken)]
    return [*baseline, refused, ["server", *serves]], made


def parcels(folder: Path) -> tuple[Commands, list[tuple[str, Commands]]]:
    """Signed task and result files, requests for certificates, and copies of a state."""
    from tests.pki import authority_in, party

    root = authority_in(folder / "ca")
    party(root, "server", "server", ("localhost",))
    party(root, "north")
    path = folder / "known.json"
    path.write_text(json.dumps(study()))
    (folder / "north.csv").write_text("y,x0,x1\n1,2,3\n")
    tls, listed = root.parent, ("--roster", root / "roster.json")

    def commands(file: Path) -> Commands:
        given = ["client", path, "--as", "north", "--data", folder / "north.csv", "--task", file]
        given.append("--allow-unprotected")
        return [
            [*given, "--tls", tls / "north", "--state", folder / "states"],
            ["import", path, file, "--tls", tls / "server", "--state", folder / "run", *listed],
            ["ca", "sign", file, "--ca", folder / "ca"], ["backup", file, "--to", folder / "copy"],
            ["ledger", "show", file], ["ledger", "verify", file],
        ]  # fmt: skip

    known = folder / "known.task"
    known.write_bytes(b"no parcel")
    texts = [f"{item}\n".encode() for item in PAYLOADS]
    texts += [
        b"",
        b"\x80\x04cos\nsystem\n(S'id > PWNED'\ntR.",
        pickled(),
        b"#!/bin/sh\nid > PWNED\n",
    ]
    texts += [json.dumps({"kind": item, **ARGUMENTS}).encode() for item in ADDRESSES]
    # A whole task file, with one byte of it changed.
    state = ["--tls", tls / "server", "--state", folder / "run", *listed]
    _invoke(
        importlib.import_module("fedvi.cli.main").main, ["export", path, "--to", folder, *state]
    )
    task = (folder / "north-0.task").read_bytes()
    texts += [
        bytes([*task[:at], task[at] ^ 255, *task[at + 1 :]])
        for at in range(0, len(task), max(1, len(task) // 30))
    ]
    made = []
    for number, content in enumerate(texts):
        file = folder / f"mutated-{number}.task"
        file.write_bytes(content)
        made.append((f"parcel {content[:40]!r}", commands(file)))
    made += [(name, commands(file)) for name, file in bundles(folder, tls)]
    # The whole one is taken, and answered; those that are changed may do no more.
    return [*commands(known), *commands(folder / "north-0.task")], made


def bundles(folder: Path, tls: Path) -> Iterator[tuple[str, Path]]:
    """Yields signed task and result files whose announced arrays are none."""
    from fedvi.federation.messages import Tensor
    from fedvi.transport import codec
    from fedvi.transport import parcels as files
    from fedvi.transport._wire import parcels_pb2 as pb

    with files._Reader(folder / "north-0.task", files._TASK) as reader:
        task = reader.message(pb.TaskFile)
    result = pb.ResultFile()
    result.hello.client = result.submit.client = "north"
    result.hello.study_digest, result.hello.protocol_min = task.study_digest, 2
    result.hello.protocol_max = 2
    result.submit.task_id = "north/0"
    result.submit.payload.CopyFrom(task.reply.task.posterior)

    def tensors(ref: Any) -> list[Tensor]:
        found, at = [], 0
        for spec in ref.tensors:
            end = at + 8 * int(np.prod(spec.shape))
            found.append(Tensor(spec.name, spec.dtype, tuple(spec.shape), ref.inline[at:end]))
            at = end
        return found

    def damage(ref: Any, payload: str) -> Iterator[str]:
        """Puts a payload into each place of a bundle in turn."""
        whole = ref.SerializeToString()
        for place in ("name", "dtype", "event", "bytes"):
            if place == "event":
                ref.event = json.dumps({"kind": payload, **ARGUMENTS})
            elif place == "bytes":
                ref.inline = pickled()
                ref.size = len(ref.inline)
            else:
                setattr(ref.tensors[0], place, payload)
            ref.sha256 = bytes.fromhex(codec.digest(ref.event, tensors(ref)))
            yield place
            ref.ParseFromString(whole)

    kinds = (
        (files._TASK, "server", task, task.reply.task.posterior),
        (files._RESULT, "north", result, result.submit.payload),
    )
    for kind, signer, message, ref in kinds:
        hostile = ("os:system", "hostile_module:run", "|O", "object", "__import__")
        for number, payload in enumerate(hostile):
            for place in damage(ref, payload):
                file = folder / f"bundle-{signer}-{place}-{number}.task"
                files._write(file, tls / signer, kind, message, [])
                yield f"bundle of {signer}: {place} = {payload}", file


FAMILIES: dict[str, Callable[[Path], tuple[Commands, list[tuple[str, Commands]]]]] = {
    "studies": studies,
    "results": results,
    "parcels": parcels,
}


def _computed_here(path: Path, described: Any) -> Any:
    from fedvi.run import server_plan
    from fedvi.study import build
    from fedvi.study.config import load_study

    return server_plan.make(build.assemble(load_study(path, described.parts)))


def _finish(content: dict[str, Any], finish: dict[str, Any]) -> None:
    for worker in content["workers"]:
        worker["finish"] = finish


def _toml(raw: dict[str, Any]) -> str:
    """Writes tables as TOML: values are inline, one key a line, so that a line has one name."""
    lines: list[str] = []
    for section, table in raw.items():
        if section == "clients":
            for client in table:
                lines += [
                    "[[clients]]",
                    *(f"{key} = {_value(item)}" for key, item in client.items()),
                ]
        else:
            lines += [f"[{section}]", *(f"{key} = {_value(item)}" for key, item in table.items())]
    text = "\n".join(lines) + "\n"
    assert tomllib.loads(text) == raw
    return text


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def main(family: str, folder: Path, most: int | None = None) -> dict[str, Any]:
    """Runs a family of commands; returns how many files were read, and what is wrong."""
    from fedvi.cli.main import main as fedvi
    from fedvi.run import server_plan

    # A server's plan is computed here, where it is watched, and not in the process that computes it.
    server_plan._computed = _computed_here
    baseline, made = FAMILIES[family](folder)
    watch, wrong, refusals = Watch(), [], {}
    usual: dict[str, set[str]] = {}
    for arguments in baseline:
        usual.setdefault(str(arguments[0]), set()).update(watch.during(fedvi, arguments)[0])
    made = made if most is None else made[:: max(1, len(made) // most)]
    for name, commands in made:
        for arguments in commands:
            seen, done = watch.during(fedvi, arguments)
            said = f"{name}: fedvi {arguments[0]}"
            fresh = seen - usual.get(str(arguments[0]), set())
            wrong += [f"{said} did {event}" for event in sorted(fresh)]
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                wrong.append(f"{said} raised {done.exception!r}")
            if "hostile_module" in sys.modules:
                raise AssertionError(f"{said} imported the module")
            refusals.setdefault(name, {})[str(arguments[0])] = done.output
    wrong += [f"{file} was written" for file in Path.cwd().rglob("PWNED")]
    return {"files": len(made), "wrong": wrong, "refusals": refusals}


if __name__ == "__main__":
    given = int(sys.argv[3]) if len(sys.argv) > 3 else None
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]), given)))
