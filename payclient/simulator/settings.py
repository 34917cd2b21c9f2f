"""The points that the document leaves open about a concrete service, each with the least that a default can claim."""

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, Literal

import cattrs
from attrs import asdict, field, fields, frozen, validators

PENDING = "Pendiente"
ACCEPTED = "Aceptado"
CANCELLED = "Cancelado"

#: Operations that the document does not have at all; `Settings.paths` says where they are.
OPERATIONS: Final = ("confirm", "cancel", "cancel_by_client_id", "reverse", "reverse_by_client_id", "regions")

#: The state that follows each of these. Not shown (§3) of the first two; "unconfirmed" is a paid form that must be
#: confirmed and is not yet.
_STATES: Final = {"approved": ACCEPTED, "rejected": CANCELLED, "unconfirmed": ACCEPTED, "reversed": CANCELLED}
_PATHS: Final = {"wallet": ("/form/wallet",), "card": ("/form/card",)}

_positive: Any = validators.gt(0)
_number_path: Any = validators.matches_re(r"/.*\{transaction_id\}.*")
_client_id_path: Any = validators.matches_re(r"/.*\{client_transaction_id\}.*")
_states: Any = validators.deep_mapping(
    validators.in_(tuple(_STATES)), validators.in_((PENDING, ACCEPTED, CANCELLED))
)
_paths: Any = validators.deep_mapping(
    validators.in_((*OPERATIONS, *_PATHS)), validators.deep_iterable(validators.matches_re("/.*"))
)
_hosts: Any = validators.deep_iterable(validators.matches_re(r"[a-z0-9._-]+|[0-9a-f:.]+"))


def _all_states(states: Mapping[str, str]) -> Mapping[str, str]:
    return {**_STATES, **states}


def _all_paths(paths: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    return {**_PATHS, **paths}


@frozen(kw_only=True)
class Settings:
    """How this simulated service fills in what the document calls "not shown"."""

    #: Seconds until an unanswered push expires. Shown (§8): 300; demos and tests shorten it.
    sale_window: float = field(default=300.0, validator=_positive)
    #: Seconds that a form link lives from its first load. Shown (§8): 600.
    form_window: float = field(default=600.0, validator=_positive)
    #: Seconds within which a paid form must be confirmed, or it is reversed. None: it need not be.
    confirm_window: float | None = field(default=None, validator=validators.optional(_positive))
    #: Not shown (§3): the state after "approved" and "rejected", of a form "unconfirmed", and after "reversed"; those
    #: left out are as by default.
    states: Mapping[str, str] = field(factory=dict, converter=_all_states, validator=_states)

    #: The id of the first transaction. A ledger that outlives the service must not meet one of its ids again.
    # Not 1, so that a position in a list is not taken for an id by luck.
    first_id: int = field(default=1001, validator=_positive)
    #: Not shown (§4.2): the path of the status query, such as "/api/Sale/{transaction_id}"; None: no route.
    status_by_transaction_id: str | None = field(default=None, validator=validators.optional(_number_path))
    #: Not shown (§4.2): the path of the query by the merchant's id, with "{client_transaction_id}" in it.
    status_by_client_transaction_id: str | None = field(
        default=None, validator=validators.optional(_client_id_path)
    )
    #: Not shown: the name of the field that carries the state, and its words for the states of §3, else its own word.
    state_field: str = "transactionStatus"
    state_words: Mapping[str, str] = field(factory=dict)
    #: Status queries answered in any 60 seconds, after which comes 429 with Retry-After; None: all.
    queries_per_minute: int | None = field(default=None, validator=validators.optional(_positive))
    #: Not shown: HTTP status and errorCode of the answer to a query for a transaction that does not exist.
    not_found: tuple[int, int] = (404, 20)
    #: Not shown: whether the id of another account's transaction is answered with 401, or as not found.
    foreign_is_unauthorized: bool = False
    #: Not shown (§3, §4.2): whether a query for an expired transaction is answered as not found.
    forgets_expired: bool = False

    #: Whether names are taken in any letter case, numbers as text and text as numbers, bodies as a web form sends them,
    #: and paths and the word Bearer in any letter case.
    tolerant: bool = False
    #: Not shown (§2.2): the name of the boolean flag that charges `nickName`; None: no flag.
    nick_name_flag: str | None = None
    #: Required fields of §2.2 and §2.3 that may be absent all the same: the currency is then USD, and the phone may be
    #: absent only where a nick name is charged.
    optional_fields: frozenset[str] = frozenset()
    #: The least and the most of a number, or of a text's characters: {"amount": (1, 99_999_999)}. A name may begin with
    #: its operation: "prepare.reference".
    limits: Mapping[str, tuple[int, int]] = field(factory=dict)
    #: The least total in cents; a smaller one is answered with code 107.
    least_amount: int | None = None
    #: The phones of a Sale as a regular expression; another one is answered with code 120. None: any text is one.
    phone_pattern: str | None = field(default=None, validator=lambda _, __, text: text and re.compile(text))
    #: The known stores; another one is answered with code 100. None: all are known.
    stores: frozenset[str] | None = None
    #: The errorCode with which a phone, nick name, store or client transaction id is answered, nothing created.
    refuse_with: Mapping[str, int] = field(factory=dict)
    #: Not shown: the errorCode of a repeated clientTransactionId. None: the repeat creates a SECOND sale, because the
    #: document promises nothing else.
    duplicate_code: int | None = None
    #: Not shown: whether a Prepare repeats the id of a form that is not paid, too.
    refuses_second_form: bool = False
    #: Not shown (§4.4): HTTP statuses of error objects by errorCode; a code left out has 400.
    error_statuses: Mapping[int, int] = field(factory=dict)
    #: The kind of the application whose token it is: "API" may ask for sales, "WEB" for forms and Confirm. None: both.
    application: Literal["API", "WEB"] | None = None

    #: Where each of `OPERATIONS` is; one that is left out does not exist. All but "regions" are POST. Likewise the
    #: forms "wallet" and "card".
    paths: Mapping[str, tuple[str, ...]] = field(factory=dict, converter=_all_paths, validator=_paths)
    #: Hours from UTC of the dates in a status, and of the day of a reversal.
    utc_offset: float = field(default=0.0, validator=(validators.gt(-24), validators.lt(24)))
    #: The hour of that zone until which a payment of the same day can be reversed.
    reversal_hour: int = field(default=24, validator=validators.in_(range(25)))

    #: Not shown (§2.3): the name of the parameter for a form's language; None: no parameter, and all forms are in "es".
    language_field: str | None = None
    #: Not shown (§2.6): the real name of the wallet link's field, which carries the service's brand.
    wallet_link_field: str = field(
        default="payWithWallet", validator=validators.matches_re(r"(?!paymentId$|payWithCard$).+")
    )
    #: The hosts from which the merchant may redirect to a form (§4), such as "shop.example", in small letters, without
    #: scheme and port. None: from any, but the redirecting site must send its address.
    registered_domains: frozenset[str] | None = field(default=None, validator=validators.optional(_hosts))
    #: Not shown (§6): the names of the two ids that a form adds to `responseUrl`.
    redirect_names: tuple[str, str] = ("id", "clientTransactionId")
    #: Not shown (§6): whether the X adds both ids, its own as 0, to `cancellationUrl` or else to `responseUrl`, and a
    #: form from an unregistered domain leads to `responseUrl` with `msg`. If not, the X adds nothing, and without
    #: `cancellationUrl` it leads nowhere; an unregistered domain gets a page.
    returns_without_payment: bool = False

    #: Not shown (§6): the HTTP method of the notification. Its parameters go into the query in either case.
    notification_method: Literal["GET", "POST"] = field(
        default="GET", validator=validators.in_(("GET", "POST"))
    )
    #: The names of its two ids (§6).
    notification_names: tuple[str, str] = ("id", "clientTransactionID")
    #: The address to which each approved payment is POSTed as JSON; None: none.
    external_notification_url: str | None = None
    #: Whether scripts of any web page may call the merchant's routes (CORS).
    cors: bool = False

    def changed(self, changes: Mapping[str, object]) -> "Settings":
        """Return these settings with some changed, given as JSON has them or as text; ValueError for what cannot be.

        Several values in one text have commas between them.
        """
        given, types = dict(changes), {one.name: str(one.type) for one in fields(Settings)}
        if unknown := given.keys() - types.keys():
            raise ValueError(
                f"not a setting: {', '.join(sorted(unknown))}; the settings are {', '.join(types)}"
            )
        for name, text in given.items():
            if isinstance(text, str) and re.search("frozenset|tuple", types[name]):
                given[name] = [part.strip() for part in text.split(",")]
        try:
            return _CONVERTER.structure({**asdict(self), **given}, Settings)
        except Exception as error:  # cattrs raises many
            raise ValueError(f"{', '.join(changes)}: {error.args[0]}") from None


def _strictly(value: object, kind: type) -> object:
    if kind is int and isinstance(value, str):  # a key of a JSON object
        return int(value)
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of type {kind.__name__}")
    return value


_CONVERTER = cattrs.Converter(detailed_validation=False)
for _kind in (bool, str, int):
    _CONVERTER.register_structure_hook(_kind, _strictly)

#: One real service by its public documentation and its clients: `payphone.toml`, with the source of each setting.
PAYPHONE: Final = Settings().changed(
    tomllib.loads(files(__package__).joinpath("payphone.toml").read_text(encoding="utf-8"))
)
