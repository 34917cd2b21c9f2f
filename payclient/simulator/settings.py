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
    """How this simulated service fills in what the document calls "not shown".

    - `sale_window`: seconds until an unanswered push expires. Shown (§8): 300; demos and tests shorten it.
    - `form_window`: seconds that a form link lives from its first load. Shown (§8): 600.
    - `confirm_window`: seconds within which a paid form must be confirmed, or it is reversed. None: it need not be.
    - `states`: (not shown, §3) the state after "approved" and "rejected", of a form "unconfirmed", and after
      "reversed"; those left out are as by default.
    - `first_id`: the id of the first transaction. A ledger that outlives the service must not meet one of its ids
      again.
    - `status_by_transaction_id`: (not shown, §4.2) the path of the status query, such as
      "/api/Sale/{transaction_id}"; None: no route.
    - `status_by_client_transaction_id`: (not shown, §4.2) the path of the query by the merchant's id, with
      "{client_transaction_id}" in it.
    - `state_field`, `state_words`: (not shown) the name of the field that carries the state, and its words for the
      states of §3, else its own word.
    - `queries_per_minute`: status queries answered in any 60 seconds, after which comes 429 with Retry-After; None:
      all.
    - `not_found`: (not shown) HTTP status and errorCode of the answer to a query for a transaction that does not
      exist.
    - `foreign_is_unauthorized`: (not shown) whether the id of another account's transaction is answered with 401, or
      as not found.
    - `forgets_expired`: (not shown, §3, §4.2) whether a query for an expired transaction is answered as not found.
    - `tolerant`: whether names are taken in any letter case, numbers as text and text as numbers, bodies as a web
      form sends them, and paths and the word Bearer in any letter case.
    - `nick_name_flag`: (not shown, §2.2) the name of the boolean flag that charges `nickName`; None: no flag.
    - `optional_fields`: required fields of §2.2 and §2.3 that may be absent all the same; the currency is then USD,
      and the phone may be absent only where a nick name is charged.
    - `limits`: the least and the most of a number, or of a text's characters, as in {"amount": (1, 99_999_999)}. A
      name may begin with its operation, as in "prepare.reference".
    - `least_amount`: the least total in cents; a smaller one is answered with code 107.
    - `phone_pattern`: the phones of a Sale as a regular expression; another one is answered with code 120. None: any
      text is one.
    - `stores`: the known stores; another one is answered with code 100. None: all are known.
    - `refuse_with`: the errorCode with which a phone, nick name, store or client transaction id is answered, nothing
      created.
    - `duplicate_code`: (not shown) the errorCode of a repeated clientTransactionId. None: the repeat creates a SECOND
      sale, because the document promises nothing else.
    - `refuses_second_form`: (not shown) whether a Prepare repeats the id of a form that is not paid, too.
    - `error_statuses`: (not shown, §4.4) HTTP statuses of error objects by errorCode; a code left out has 400.
    - `application`: the kind of the application whose token it is. "API" may ask for sales, "WEB" for forms and
      Confirm. None: both.
    - `paths`: where each of `OPERATIONS` is; one that is left out does not exist. All but "regions" are POST.
      Likewise the forms "wallet" and "card".
    - `utc_offset`: hours from UTC of the dates in a status, and of the day of a reversal.
    - `reversal_hour`: the hour of that zone until which a payment of the same day can be reversed.
    - `language_field`: (not shown, §2.3) the name of the parameter for a form's language; None: no parameter, and all
      forms are in "es".
    - `wallet_link_field`: (not shown, §2.6) the real name of the wallet link's field, which carries the service's
      brand.
    - `registered_domains`: the hosts from which the merchant may redirect to a form (§4), such as "shop.example", in
      small letters, without scheme and port. None: from any, but the redirecting site must send its address.
    - `redirect_names`: (not shown, §6) the names of the two ids that a form adds to `responseUrl`.
    - `returns_without_payment`: (not shown, §6) whether the X adds both ids, its own as 0, to `cancellationUrl` or
      else to `responseUrl`, and a form from an unregistered domain leads to `responseUrl` with `msg`. If not, the X
      adds nothing, and without `cancellationUrl` it leads nowhere; an unregistered domain gets a page.
    - `notification_method`: (not shown, §6) the HTTP method of the notification. Its parameters go into the query in
      either case.
    - `notification_names`: the names of the notification's two ids (§6).
    - `external_notification_url`: the address to which each approved payment is POSTed as JSON; None: none.
    - `cors`: whether scripts of any web page may call the merchant's routes (CORS).
    """

    sale_window: float = field(default=300.0, validator=_positive)
    form_window: float = field(default=600.0, validator=_positive)
    confirm_window: float | None = field(default=None, validator=validators.optional(_positive))
    states: Mapping[str, str] = field(factory=dict, converter=_all_states, validator=_states)

    # Not 1, so that a position in a list is not taken for an id by luck.
    first_id: int = field(default=1001, validator=_positive)
    status_by_transaction_id: str | None = field(default=None, validator=validators.optional(_number_path))
    status_by_client_transaction_id: str | None = field(
        default=None, validator=validators.optional(_client_id_path)
    )
    state_field: str = "transactionStatus"
    state_words: Mapping[str, str] = field(factory=dict)
    queries_per_minute: int | None = field(default=None, validator=validators.optional(_positive))
    not_found: tuple[int, int] = (404, 20)
    foreign_is_unauthorized: bool = False
    forgets_expired: bool = False

    tolerant: bool = False
    nick_name_flag: str | None = None
    optional_fields: frozenset[str] = frozenset()
    limits: Mapping[str, tuple[int, int]] = field(factory=dict)
    least_amount: int | None = None
    phone_pattern: str | None = field(default=None, validator=lambda _, __, text: text and re.compile(text))
    stores: frozenset[str] | None = None
    refuse_with: Mapping[str, int] = field(factory=dict)
    duplicate_code: int | None = None
    refuses_second_form: bool = False
    error_statuses: Mapping[int, int] = field(factory=dict)
    application: Literal["API", "WEB"] | None = None

    paths: Mapping[str, tuple[str, ...]] = field(factory=dict, converter=_all_paths, validator=_paths)
    utc_offset: float = field(default=0.0, validator=(validators.gt(-24), validators.lt(24)))
    reversal_hour: int = field(default=24, validator=validators.in_(range(25)))

    language_field: str | None = None
    wallet_link_field: str = field(
        default="payWithWallet", validator=validators.matches_re(r"(?!paymentId$|payWithCard$).+")
    )
    registered_domains: frozenset[str] | None = field(default=None, validator=validators.optional(_hosts))
    redirect_names: tuple[str, str] = ("id", "clientTransactionId")
    returns_without_payment: bool = False

    notification_method: Literal["GET", "POST"] = field(
        default="GET", validator=validators.in_(("GET", "POST"))
    )
    notification_names: tuple[str, str] = ("id", "clientTransactionID")
    external_notification_url: str | None = None
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
