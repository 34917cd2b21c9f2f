"""What the document leaves "not shown" about a concrete service: names, paths, states, codes, limits.

`DOCUMENT` holds only what the document shows. A call that needs a missing name raises `ConfigurationError` naming
the setting; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from payclient.errors import ConfigurationError
from payclient.profile_tables import NAME, TABLES, check_tables, is_seconds, to_mapping, to_set

# By their own names too: they belong to a profile's face.
from payclient.profile_tables import ConfirmProfile as ConfirmProfile
from payclient.profile_tables import ReturnProfile as ReturnProfile
from payclient.profile_tables import StatusProfile as StatusProfile
from payclient.profile_tables import UndoProfile as UndoProfile

__all__ = ["DOCUMENT", "ServiceProfile"]

#: HTTP statuses of something between us and the service that gave up: the service may have gone on.
GAVE_UP = frozenset({408, 425, 499})

_LANGUAGE = re.compile(r"[A-Za-z0-9*][A-Za-z0-9*,;=. -]{0,99}")


@attrs.frozen(kw_only=True)
class ServiceProfile:
    """The settings of one concrete service. Seconds for times; see `DOCUMENT` for what needs no setting."""

    name: str = "document"
    #: Where the service is, for sessions that are given no address.
    base_url: str | None = None
    #: The `Accept-Language` of every request, where messages follow it.
    message_language: str | None = None
    #: The boolean field that says "charge the nick name" (§2.2: its name is not shown).
    nick_name_flag: str | None = None
    #: Whether a Sale by nick name may leave the phone out.
    phone_optional_with_nick_name: bool = False
    #: The field of the form's language (§2.3: its name is not shown).
    language_field: str | None = None
    #: The field of the wallet form's link, which carries the service's brand (§2.6).
    wallet_link_field: str | None = None
    #: Samples spell it `responseUrl` and `ResponseUrl` (§2.3).
    response_url_field: str = "responseUrl"
    #: Error codes that mean "this client transaction id is already there": refused only where a query finds nothing.
    duplicate_codes: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)
    #: Error codes of a service that failed, and may have created something all the same.
    uncertain_codes: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)
    #: Error codes of a status query that mean "no such transaction".
    not_found_codes: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)
    #: Status queries allowed in a minute, over all transactions; None: no limit known.
    queries_per_minute: float | None = None
    #: HTTP statuses known to create nothing whatever their body.
    refusing_statuses: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)
    #: Seconds until a push request expires (§8).
    sale_window: float = 300.0
    #: Seconds that a form link lives (§8).
    form_window: float = 600.0
    #: Seconds after the permit from which "not found" may prove absence; twice the sale window unless given.
    absent_after: float = attrs.field()
    #: Hosts that a form link may name; None: not checked.
    link_hosts: frozenset[str] | None = attrs.field(default=None, converter=to_set)
    #: Longest text by our field name, in characters (§2.2: length limits are not shown).
    max_lengths: Mapping[str, int] = attrs.field(factory=dict, converter=to_mapping)
    #: Smallest and largest number by our field name.
    ranges: Mapping[str, tuple[int, int]] = attrs.field(factory=dict, converter=to_mapping)
    status: StatusProfile | None = None
    confirm: ConfirmProfile | None = None
    cancel: UndoProfile | None = None
    reverse: UndoProfile | None = None
    returned: ReturnProfile | None = None

    @absent_after.default
    def _twice_the_sale_window(self) -> float:
        return 2 * self.sale_window if is_seconds(self.sale_window) else 600.0

    def __attrs_post_init__(self) -> None:
        _check(self)

    @classmethod
    def load(cls, path: str | Path) -> ServiceProfile:
        """Read a profile from a TOML file. Unknown or bad settings raise `ConfigurationError` naming them."""
        import tomllib  # here: most programs load one profile at the most

        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the profile {path} cannot be read: {type(error).__name__}") from None
        try:
            settings = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"the profile {path} is no TOML: {error}") from None
        return cls.parse(settings)

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> ServiceProfile:
        """Make a profile from the tables of its TOML form."""
        settings = dict(settings)
        known = {field.name for field in attrs.fields(cls)}
        unknown = [name for name in settings if name not in known]
        tables: dict[str, Any] = {}
        for table, kind in TABLES.items():
            values = settings.pop(table, None)
            if values is None:
                continue
            if not isinstance(values, Mapping):
                raise ConfigurationError(f"profile setting {table}: is a table")
            inner = attrs.fields_dict(kind)
            unknown += [f"{table}.{name}" for name in values if name not in inner]
            tables[table] = values
        if unknown:
            raise ConfigurationError(f"unknown profile setting {', '.join(sorted(unknown))}")
        for table, values in tables.items():
            for field in attrs.fields(TABLES[table]):
                if field.default is attrs.NOTHING and field.name not in values:
                    raise ConfigurationError(
                        f"profile setting {table}.{field.name}: is required beside [{table}]"
                    )
            settings[table] = TABLES[table](**values)
        ranges = settings.get("ranges")
        if isinstance(ranges, Mapping):  # TOML has no tuples
            settings["ranges"] = {
                name: tuple(pair) if isinstance(pair, list) else pair for name, pair in ranges.items()
            }
        return cls(**settings)


def _check(profile: ServiceProfile) -> None:
    """Raise `ConfigurationError` for the first setting that cannot be."""

    def need(good: object, setting: str, what: str) -> None:
        if not good:
            raise ConfigurationError(f"profile setting {setting}: {what}")

    need(isinstance(profile.name, str) and profile.name, "name", "is a text")
    need(
        profile.base_url is None or (isinstance(profile.base_url, str) and profile.base_url),
        "base_url",
        "is an address",
    )
    language = profile.message_language
    need(
        language is None or (isinstance(language, str) and _LANGUAGE.fullmatch(language)),
        "message_language",
        "is a language such as es, or a value of Accept-Language",
    )
    for setting in ("nick_name_flag", "language_field", "wallet_link_field", "response_url_field"):
        value = getattr(profile, setting)
        optional = setting != "response_url_field"
        need(
            (value is None and optional) or (isinstance(value, str) and NAME.fullmatch(value)),
            setting,
            "is the name of a field",
        )
    need(
        type(profile.phone_optional_with_nick_name) is bool,
        "phone_optional_with_nick_name",
        "is true or false",
    )
    for setting in ("sale_window", "form_window", "absent_after"):
        need(is_seconds(getattr(profile, setting)), setting, "is a positive number of seconds")
    need(
        profile.absent_after >= profile.sale_window,
        "absent_after",
        f'must be at least sale_window ({profile.sale_window:g} s): an earlier "not found" proves nothing',
    )
    rate = profile.queries_per_minute
    need(rate is None or is_seconds(rate), "queries_per_minute", "is a positive number")
    for setting in ("duplicate_codes", "uncertain_codes", "not_found_codes", "refusing_statuses"):
        codes = getattr(profile, setting)
        good = isinstance(codes, frozenset) and all(type(code) is int for code in codes)
        need(good, setting, "is a list of integers")
    need(
        all(
            100 <= status <= 599 and status // 100 != 2 and status not in GAVE_UP
            for status in profile.refusing_statuses
        ),
        "refusing_statuses",
        "are HTTP statuses, none of them a success, nor 408, 425 or 499: after those the service may go on",
    )
    need(
        isinstance(profile.max_lengths, Mapping)
        and all(
            isinstance(name, str) and type(size) is int and size > 0
            for name, size in profile.max_lengths.items()
        ),
        "max_lengths",
        "maps field names to positive integers",
    )
    need(
        isinstance(profile.ranges, Mapping)
        and all(
            isinstance(pair, tuple)
            and len(pair) == 2
            and type(pair[0]) is type(pair[1]) is int
            and pair[0] <= pair[1]
            for pair in profile.ranges.values()
        ),
        "ranges",
        "maps field names to [smallest, largest]",
    )
    need(
        profile.link_hosts is None
        or (
            isinstance(profile.link_hosts, frozenset)
            and all(isinstance(host, str) and host for host in profile.link_hosts)
        ),
        "link_hosts",
        "is a list of host names",
    )
    check_tables({name: getattr(profile, name) for name in TABLES}, need)


#: Only what the document shows.
DOCUMENT = ServiceProfile()
