"""The direction of imports: a module sees only the rows above its own, and the core sees no world."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import payclient

ROOT = Path(payclient.__file__).parent

#: From the top down. A name is a module or a package; the modules of one package may import each other.
ROWS = [
    "errors amounts secret",
    "validation",
    "events models",
    "profile",
    "answers",
    "wire lifecycle schedule notifications",
    "clock logs",
    "auth",
    "transport ledger loop_thread",
    "session",
    "tracking",
    "batch rows",
    "sync",
    "web telemetry",
    "cli",
]
ROW = {name: number for number, names in enumerate(ROWS) for name in names.split()}

#: No I/O, no clock, no randomness, no logging.
CORE = ROWS[0:6]
WORLD = {
    "asyncio", "aiohttp", "logging", "random", "time", "secrets", "socket", "threading", "uuid", "sqlite3",
}  # fmt: skip

#: In no row: the service's stand-in, and what reads it.
ASIDE = {"simulator", "pytest_plugin"}

#: The face imports all rows but the command line's; `python -m payclient` is the command line.
FACES = {"__init__": len(ROWS) - 2, "__main__": len(ROWS) - 1}


@cache
def trees() -> dict[Path, ast.Module]:
    """What is read of each module, by its path below the package; by the worker that needs it."""
    return {path.relative_to(ROOT): ast.parse(path.read_bytes()) for path in sorted(ROOT.rglob("*.py"))}


def name_of(path: Path) -> str:
    """The module or package of the top level that a file belongs to."""
    return path.parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The full names of all that a module imports anywhere."""
    for inner in ast.walk(trees()[path]):
        if isinstance(inner, ast.Import):
            yield from (alias.name for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom):
            package = ("payclient", *path.parts)[: -inner.level] if inner.level else ()
            source = ".".join((*package, *([inner.module] if inner.module else [])))
            yield from (f"{source}.{alias.name}" for alias in inner.names)


def roots(path: Path) -> set[str]:
    """The first names of all that a module imports."""
    return {full.split(".")[0] for full in imported(path)}


def ours(path: Path) -> set[str]:
    """The modules and packages of our top level that a file imports; `__init__` stands for the face."""
    modules = {name_of(each) for each in trees()}
    below = [
        [*full.split("."), "__init__"][1] for full in imported(path) if full.split(".")[0] == "payclient"
    ]
    return {each if each in modules else "__init__" for each in below}


def test_a_module_imports_only_from_rows_above_its_own() -> None:
    for path in trees():
        name = name_of(path)
        if name in ASIDE:
            continue
        assert name in ROW or name in FACES, f"{name} is in no row"
        for other in ours(path) - {name}:
            if name in FACES:
                assert ROW[other] <= FACES[name], f"{path} imports {other}"
                assert (name, other) not in {("__init__", "web"), ("__init__", "sync")}, (
                    "the face loads neither"
                )
            elif (name, other) in {("cli", "simulator"), ("cli", "__init__"), ("sync", "__init__")}:
                continue  # the lowest row runs the simulator, and those that wrap the face see it
            else:
                assert other in ROW, f"{path} imports {other}"
                assert ROW[other] < ROW[name], f"{path} imports {other}"


def test_the_simulator_imports_nothing_of_payclient() -> None:
    """Or a misreading of the document would be made twice, and seen never."""
    for path in trees():
        assert name_of(path) != "simulator" or ours(path) <= {"simulator"}, path


def test_the_core_sees_no_world() -> None:
    """Time, sleep and randomness are arguments of the core."""
    for name in " ".join(CORE).split():
        path = Path(f"{name}.py")
        assert not roots(path) & WORLD, path
        for node in ast.walk(trees()[path]):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("now", "utcnow", "today"), f"{path}:{node.lineno} reads a clock"


def test_aiohttp_is_a_client_in_one_place() -> None:
    """Receivers of notifications may be servers."""
    for path in trees():
        for full in imported(path):
            if full.split(".")[0] == "aiohttp" and path != Path("transport.py"):
                assert path.parts[0] in ("web", "simulator"), f"{path} imports {full}"
                assert path.parts[0] == "simulator" or full.split(".")[1] == "web", f"{path} imports {full}"


def test_a_framework_is_imported_only_by_the_module_of_its_name() -> None:
    """Whoever uses one of them needs no other; the pure modules of `web` need none."""
    for path in trees():
        frameworks = roots(path) & {"django", "starlette", "fastapi"}
        assert frameworks <= ({*path.with_suffix("").parts} if path.parts[0] == "web" else set()), path
        if path.parts[0] == "web" and path.stem != "aiohttp":
            assert "aiohttp" not in roots(path), path
