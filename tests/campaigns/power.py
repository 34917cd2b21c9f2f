"""Power failure: what the ledger said is written is there, whatever the disk had not been told to keep.

A child process runs the shipped ledger under a small library that notes every write and sync of its files, and
each acknowledgement in between. From prefixes of those notes come the files as a power failure may leave them:
what was synced is there, of the rest each sector may be there or not. Each image is opened as a ledger.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs

from campaigns.harness import ENVIRONMENT, ROOT, Report
from payclient.errors import PayError
from payclient.events import Created, FoundAccepted
from payclient.ledger import open_ledger
from payclient.ledger import sqlite_files as files
from payclient.lifecycle import Record, State

ROUNDS = 170
SECTOR = 512

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#include <fcntl.h>

static int notes = -1;
static char folder[4096];
static size_t folder_length;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("POWER_NOTES"), *watched = getenv("POWER_FOLDER");
    if (!path || !watched || strlen(watched) >= sizeof folder) return;
    strcpy(folder, watched);
    folder_length = strlen(folder);
    notes = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* The name below the folder, "" for the folder itself, NULL for what lies elsewhere. */
static const char *below(const char *path) {
    if (strncmp(path, folder, folder_length)) return NULL;
    if (path[folder_length] == 0) return "";
    return path[folder_length] == '/' ? path + folder_length + 1 : NULL;
}

static const char *name_of(int fd, char *path, size_t size) {
    char link[64];
    if (notes < 0) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    return below(path);
}

/* One append, so that what two threads note is not mixed. */
static void note(char kind, const char *name, uint64_t offset, const void *data, uint64_t size) {
    unsigned char head[18];
    head[0] = kind;
    head[1] = (unsigned char)strlen(name);
    memcpy(head + 2, &offset, 8);
    memcpy(head + 10, &size, 8);
    struct iovec parts[3] = {{head, 18}, {(void *)name, strlen(name)}, {(void *)data, data ? size : 0}};
    if (syscall(SYS_writev, notes, parts, 3) < 0) abort();
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

/* A function of a file that was carried out is noted before it returns: what is acknowledged later stands behind it. */
#define NOTED(type, function, parameters, arguments, kind, offset, data, carried_out) \
type function parameters { \
    REAL(function); \
    char path[4096]; \
    const char *name = name_of(fd, path, sizeof path); \
    type done = real arguments; \
    if (name && carried_out) note(kind, name, offset, data, data ? done : 0); \
    return done; \
}
#define PWRITE(function) NOTED(ssize_t, function, (int fd, const void *data, size_t size, off_t offset), \
    (fd, data, size, offset), 'W', offset, data, done > 0)
#define TRUNCATE(function) NOTED(int, function, (int fd, off_t size), (fd, size), 'T', size, NULL, !done)
#define SYNC(function) NOTED(int, function, (int fd), (fd), 'S', 0, NULL, !done)
PWRITE(pwrite)
PWRITE(pwrite64)
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    REAL(unlink);
    int done = real(path);
    const char *name = notes < 0 ? NULL : below(path);
    if (name && !done) note('U', name, 0, NULL, 0);
    return done;
}
"""

# --- The child: it charges, and says what it was promised


def child(path: str, synchronous: str) -> None:
    """Permit and record for some rounds; after each answer of the ledger, note what it acknowledged."""
    if synchronous != "FULL":
        files._SETTINGS = tuple(
            ("synchronous", "NORMAL", 1) if setting[0] == "synchronous" else setting
            for setting in files._SETTINGS
        )
    notes = os.open(os.environ["POWER_NOTES"], os.O_WRONLY | os.O_APPEND)

    def acknowledge(number: int, state: State) -> None:
        said = json.dumps([number, state]).encode()
        os.write(notes, struct.pack("<BBQQ", ord("A"), 0, 0, len(said)) + said)

    async def charge_all() -> None:
        ledger = await open_ledger(f"sqlite:{path}")
        chance, number = random.Random(1), 0  # noqa: S311 - the same charges each time

        async def charge(number: int) -> None:
            record = record_of(number)
            assert await ledger.permit(record)
            acknowledge(number, State.SENDING)
            record = await ledger.apply(
                record, Created(at=2.0, transaction_id=1000 + number, expires_at=300.0)
            )
            acknowledge(number, State.PENDING)
            if number % 3 == 0:
                await ledger.apply(record, FoundAccepted(at=3.0))
                acknowledge(number, State.ACCEPTED)

        for _ in range(ROUNDS):
            size = chance.choice((1, 1, 2, 6))
            await asyncio.gather(*(charge(number + each) for each in range(size)))
            number += size
        await ledger.aclose()

    asyncio.run(charge_all())


def record_of(number: int) -> Record:
    """A charge of the child's."""
    return Record(
        client_transaction_id=f"order-{number}", digest=b"d" * 16, lane=b"l" * 16, amount=number,
        currency="USD", created_at=1.0,
    )  # fmt: skip


# --- The notes, and the images that come of them


@attrs.frozen
class Note:
    """One operation. `kind`: Write, Truncate, Sync, Unlink, Acknowledged."""

    kind: str
    name: str
    offset: int
    data: bytes


def read_notes(path: Path) -> list[Note]:
    raw, notes, at = path.read_bytes(), [], 0
    while at < len(raw):
        kind, length, offset, size = struct.unpack_from("<BBQQ", raw, at)
        name = raw[at + 18 : at + 18 + length].decode()
        at += 18 + length
        size = size if chr(kind) in "WA" else 0
        notes.append(Note(chr(kind), name, offset, raw[at : at + size]))
        at += size
    return notes


class File:
    """What the disk holds of one file, and what it was told and not yet made to keep."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[Note] = []

    def sync(self) -> None:
        for note in self.pending:
            _carry_out(self.durable, note)
        self.pending.clear()

    def after_power_failure(self, chance: random.Random) -> bytes:
        """Any part of what was pending may have come through, a sector at a time."""
        content, kept = bytearray(self.durable), chance.choice((0.0, 0.3, 0.7, 0.95))
        torn = chance.random() < 0.5
        for note in self.pending:
            if note.kind == "W" and torn:
                for begin in range(0, len(note.data), SECTOR):
                    if chance.random() < kept:
                        part = note.data[begin : begin + SECTOR]
                        _carry_out(content, Note("W", note.name, note.offset + begin, part))
            elif chance.random() < kept:
                _carry_out(content, note)
        return bytes(content)


def _carry_out(content: bytearray, note: Note) -> None:
    if note.kind == "T":
        del content[note.offset :]
    end = note.offset + len(note.data)
    content.extend(bytes(max(end - len(content), 0)))
    content[note.offset : end] = note.data


class Disk:
    """One folder on a disk. Its entries are kept in the order of their making, as file systems' journals do."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.durable: dict[str, File] = {}
        self.pending: list[tuple[str, File | None]] = []

    def take(self, note: Note) -> None:
        if note.kind == "S" and note.name == "":
            for name, file in self.pending:
                _enter(self.durable, name, file)
            self.pending.clear()
        elif note.kind == "S":
            if note.name in self.files:
                self.files[note.name].sync()
        elif note.kind == "U":
            self.files.pop(note.name, None)
            self.pending.append((note.name, None))
        else:
            if note.name not in self.files:
                self.files[note.name] = File()
                self.pending.append((note.name, self.files[note.name]))
            self.files[note.name].pending.append(note)

    def after_power_failure(self, chance: random.Random) -> dict[str, bytes]:
        entries = dict(self.durable)
        for name, file in self.pending[: chance.randint(0, len(self.pending))]:
            _enter(entries, name, file)
        return {name: file.after_power_failure(chance) for name, file in entries.items()}


def _enter(entries: dict[str, File], name: str, file: File | None) -> None:
    if file is None:
        entries.pop(name, None)
    else:
        entries[name] = file


def _images(notes: list[Note], count: int, seed: int) -> Iterator[tuple[dict[str, bytes], dict[int, State]]]:
    """So many folders as a power failure may leave them, each with what had been acknowledged by then."""
    chance = random.Random(2 + seed)  # noqa: S311 - the same failures each time
    # Half of them at the worst moment: something has just been acknowledged.
    acknowledged = [place for place, note in enumerate(notes, 1) if note.kind == "A"]
    cuts = chance.choices(range(1, len(notes) + 1), k=count // 2) + chance.choices(acknowledged, k=count // 2)
    disk, promised, done = Disk(), dict[int, State](), 0
    for cut in sorted(cuts):
        for note in notes[done:cut]:
            if note.kind == "A":
                number, state = json.loads(note.data)
                promised[number] = State(state)
            else:
                disk.take(note)
        done = cut
        yield disk.after_power_failure(chance), dict(promised)


# --- The ledger after the power is back


async def lost(path: Path, promised: dict[int, State]) -> list[str]:
    """What was acknowledged and is not in the ledger, or what is wrong with the ledger."""
    ids = {f"order-{number}": state for number, state in promised.items()}
    try:
        ledger = await open_ledger(f"sqlite:{path}")
    except PayError as error:
        return [f"the ledger does not open: {error}"]
    try:
        found = await ledger.get_many(list(ids))
        missing = [f"{key} lost, acknowledged as {state}" for key, state in ids.items() if key not in found]
        histories = await asyncio.gather(*map(ledger.history, found))
        for (key, record), history in zip(found.items(), histories, strict=True):
            number = int(key.removeprefix("order-"))
            known = ids[key] is State.SENDING or record.transaction_id == 1000 + number
            if not known or (ids[key] is State.ACCEPTED and record.state is not State.ACCEPTED):
                missing.append(f"{key} is {record.state}, acknowledged as {ids[key]}")
            if len(history) != record.version + 1:
                missing.append(f"{key} has lost a part of its history")
        if promised and await ledger.permit(record_of(max(promised))):
            missing.append(f"order-{max(promised)} may be sent a second time")
    finally:
        await ledger.aclose()
    with sqlite3.connect(path) as connection:
        said = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    return missing if said == "ok" else [*missing, f"the file is damaged: {said}"]


def fail(*, images: int, weaker: int = 0, seed: int = 0, compiler: str = "cc") -> Report:
    """Run the child, fail the power at so many moments, and find what is lost; `weaker`: with synchronous=NORMAL."""
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        (place / "shim.c").write_text(SHIM)
        files_ = [str(place / "shim.so"), str(place / "shim.c")]
        compile_it = [compiler, "-shared", "-fPIC", "-O1", "-ldl", "-o", *files_]
        subprocess.run(compile_it, check=True, timeout=60)
        (place / "ledger").mkdir()
        environment = {
            **ENVIRONMENT,
            "LD_PRELOAD": str(place / "shim.so"),
            "POWER_NOTES": str(place / "notes"),
            "POWER_FOLDER": str(place / "ledger"),
        }
        synchronous = "NORMAL" if weaker else "FULL"
        command = [sys.executable, "-m", "campaigns.power", str(place / "ledger" / "charges.db"), synchronous]
        subprocess.run(command, check=True, env=environment, cwd=ROOT, timeout=120)
        notes = read_notes(place / "notes")
        kinds = {(note.kind, note.name.removeprefix("charges.db")) for note in notes}
        # What the library must have seen, lest it prove nothing: the log and its folder synced, and checkpoints.
        assert {("W", "-wal"), ("S", "-wal"), ("W", ""), ("S", ""), ("A", "")} <= kinds
        assert ("S", "") in {(note.kind, note.name) for note in notes}
        assert len([note for note in notes if (note.kind, note.name) == ("S", "charges.db")]) >= 3
        for number, (content, promised) in enumerate(_images(notes, images, seed)):
            image = place / f"image-{number}"
            image.mkdir()
            for file, data in content.items():
                (image / file).write_bytes(data)
            for fault in asyncio.run(lost(image / "charges.db", promised)):
                report.violate(f"image {number}: {fault}")
            shutil.rmtree(image)
            report.count("images")
    return report


if __name__ == "__main__":
    child(*sys.argv[1:])
