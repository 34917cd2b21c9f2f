"""How `payclient charge` is told what a file looks like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from payclient.errors import ConfigurationError
from payclient.rows.formats import KEY, Format

__all__: list[str] = []

_NAMED_DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "bar": "|"}

_REPEATABLE = Parameter(negative=(), show_default=False)

#: Where `--help` shows them.
FILE = Group("How the file is written", sort_key=1)


@Parameter(name="*", group=FILE)
@attrs.frozen(kw_only=True)
class FileOptions:
    """The options that say how the file is written; what is left out is found in the file, never guessed."""

    key: Annotated[str, Parameter(help="The column that is the client transaction id.")] = KEY
    map: Annotated[
        tuple[str, ...],
        _REPEATABLE,
        Parameter(help="FIELD=COLUMN, where a column has another name: phone_number=telefono. Repeatable."),
    ] = ()
    set: Annotated[
        tuple[str, ...],
        _REPEATABLE,
        Parameter(help="FIELD=VALUE, the same in every row: currency=USD. Repeatable."),
    ] = ()
    ignore: Annotated[
        tuple[str, ...],
        _REPEATABLE,
        Parameter(help="A column to pass over. Repeatable."),
    ] = ()
    delimiter: Annotated[
        str | None, Parameter(help="Between columns: , ; tab or another character. Default: found.")
    ] = None
    encoding: Annotated[str | None, Parameter(help="Such as utf-8, cp1252 or utf-16. Default: found.")] = None
    amounts: Annotated[
        Literal["cents", "decimal"], Parameter(help="Whole cents (1050), or units with decimals (10.50).")
    ] = "cents"
    decimal_mark: Annotated[
        str | None, Parameter(help="The decimal mark of the amounts, . or , . Default: found.")
    ] = None

    def format(self) -> Format:
        """The same, checked. Raises `ConfigurationError`."""
        delimiter = self.delimiter
        return Format(
            key=self.key,
            columns=_pairs("--map", self.map),
            constants=_pairs("--set", self.set),
            ignored=frozenset(self.ignore),
            delimiter=None if delimiter is None else _NAMED_DELIMITERS.get(delimiter, delimiter),
            encoding=self.encoding,
            amounts=self.amounts,
            decimal_mark=self.decimal_mark,
        )


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name or not value:
            raise ConfigurationError(f"{option}: is FIELD={'COLUMN' if option == '--map' else 'VALUE'}")
        if name in pairs:
            raise ConfigurationError(f"{option} {name}: is given twice")
        pairs[name] = value
    return pairs


def check_apart(option: str, path: Path | None, file: Path) -> None:
    """Raise `ConfigurationError` where the file of the charges would be written over."""
    if path is not None and path.exists() and file.exists() and path.samefile(file):
        raise ConfigurationError(f"{option}: is the file of the charges itself")
