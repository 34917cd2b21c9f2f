"""The lines of a file as text, each with the byte at which it begins; and which encoding that is."""

from __future__ import annotations

import codecs
import hashlib
import re
from typing import BinaryIO

import attrs

from payclient.errors import InvalidRequestError

__all__ = ["Encoding", "Lines", "Sniffed", "sniff"]

#: Longer lines are no rows.
MAX_LINE = 2**20

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

#: Bytes that a Windows-1252 text has no use for between letters, where another code page has its accents; the
#: apostrophe, ordinals and the middle dot aside.
_FOREIGN = re.compile(
    rb"[A-Za-z\xC0-\xFF][\x80-\x91\x93-\x9F\xA0-\xA9\xAB-\xB3\xB5\xB6\xB8\xB9\xBB-\xBF][A-Za-z\xC0-\xFF]"
)
_UNDEFINED = re.compile(rb"[\x81\x8D\x8F\x90\x9D]")


@attrs.frozen
class Encoding:
    """How bytes are text."""

    #: A codec's name, without a byte order mark.
    name: str
    #: Bytes of the mark at the file's begin.
    mark: int = 0

    @property
    def wide(self) -> bool:
        """Two bytes a character."""
        return self.name.startswith("utf-16")

    def decode(self, raw: bytes) -> str:
        """The text; what is none becomes lone surrogates or replacement characters, found again in its cell."""
        return raw.decode(self.name, "replace" if self.wide else "surrogateescape")


@attrs.frozen
class Sniffed:
    """What a look at all the bytes found."""

    encoding: Encoding
    #: Of every byte: the file is the same as long as this is.
    digest: bytes


def sniff(file: BinaryIO, name: str, *, told: str | None = None, only_utf8: bool = False) -> Sniffed:
    """Read the bytes once: their digest, and their encoding unless told.

    A byte order mark decides; else it is UTF-8 if every byte is; else Windows-1252 if no byte contradicts it.
    `InvalidRequestError` where it is neither.
    """
    digest = hashlib.blake2b(digest_size=16)
    decoder = codecs.getincrementaldecoder("utf-8")()
    first = b""
    utf8 = cp1252 = True
    tail = b""
    while chunk := file.read(2**20):
        first = first or chunk[:4]
        digest.update(chunk)
        if utf8:
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError:
                utf8 = False
        if cp1252 and not chunk.isascii():
            cp1252 = not _UNDEFINED.search(chunk) and not _FOREIGN.search(tail + chunk)
        tail = chunk[-2:]
    if utf8:
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            utf8 = False
    return Sniffed(_encoding(first, name, told, utf8=utf8 or only_utf8, cp1252=cp1252), digest.digest())


def _encoding(first: bytes, name: str, told: str | None, *, utf8: bool, cp1252: bool) -> Encoding:
    for bom, codec in _BOMS:
        if first.startswith(bom):
            return Encoding(codec, len(bom))
    if told is not None:
        codec = codecs.lookup(told).name
        return Encoding({"utf-8-sig": "utf-8", "utf-16": "utf-16-le"}.get(codec, codec))
    if utf8:
        return Encoding("utf-8")
    if cp1252:
        return Encoding("cp1252")
    raise InvalidRequestError(f"{name}: is neither UTF-8 nor Windows-1252 (cp1252): give --encoding")


class Lines:
    """The physical lines of an open file; iterate to read on, `seek` to go elsewhere."""

    def __init__(self, file: BinaryIO, name: str, encoding: Encoding) -> None:
        self._file = file
        self._name = name
        self._encoding = encoding
        self._wide = encoding.wide
        self._newline = "\n".encode(encoding.name)
        self.seek(encoding.mark)
        #: Lines read since the begin, or since `seek`.
        self.number = 0

    def seek(self, offset: int) -> None:
        """Read on from a byte at which a line begins."""
        self._file.seek(offset)
        self.offset = offset
        #: What was read since `take`.
        self._raw: list[bytes] = []
        self.number = 0

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        raw = self._wide_line() if self._wide else self._file.readline(MAX_LINE)
        if not raw:
            raise StopIteration
        self.number += 1
        if len(raw) >= MAX_LINE:
            raise InvalidRequestError(f"{self._name}: line {self.number} is longer than {MAX_LINE:,} bytes")
        self.offset += len(raw)
        self._raw.append(raw)
        return self._encoding.decode(raw)

    def _wide_line(self) -> bytes:
        # The byte of a line feed stands inside other characters, too.
        line = b""
        while raw := self._file.readline(MAX_LINE):
            line += raw
            if self._newline[0] == 0x0A and len(line) % 2:
                line += self._file.read(1)
            if (len(line) % 2 == 0 and line.endswith(self._newline)) or len(line) >= MAX_LINE:
                break
        return line

    def take(self) -> bytes:
        """The bytes read since the last `take` or `seek`."""
        raw = self._raw[0] if len(self._raw) == 1 else b"".join(self._raw)
        self._raw = []
        return raw
