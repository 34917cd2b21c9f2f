"""Presets: the names of real services, so that payclient works there from the first line.

Each value has its source in a comment: V the vendor's documentation or official code, L a third party's record of the
live service, C several clients, 1 one client. The pages are those of docs.payphone.app. What is not named here stays
as the document has it.
"""

from __future__ import annotations

import os

from payclient.errors import ConfigurationError
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.profile_tables import ConfirmProfile, ReturnProfile, StatusProfile, UndoProfile

__all__ = ["PAYPHONE"]

#: PayPhone (Ecuador).
PAYPHONE = ServiceProfile(
    name="payphone",
    # V api-implementacion: one address for test and production; which of them it is, is the application's setting.
    base_url="https://pay.payphonetodoesposible.com",
    # V codigos-de-error: messages follow Accept-Language.
    message_language="es",
    # V api-implementacion: with it, the phone may be left out.
    nick_name_flag="chargeByNickName",
    phone_optional_with_nick_name=True,
    # V boton-de-pago-por-redireccion: `es` or `en`.
    language_field="lang",
    # V boton-de-pago-por-redireccion. A fourth link, payWithPaymentCode, stands in `PrepareResult.links`.
    wallet_link_field="payWithPayPhone",
    # V C: names are case-insensitive there; this is the one of the field tables.
    response_url_field="responseUrl",
    # V codigos-de-error: "duplicate clientTransactionId"; after a time-out it means that it exists.
    duplicate_codes=frozenset({23}),
    # V codigos-de-error: the service failed, which does not say that it did nothing.
    uncertain_codes=frozenset({500, 501}),
    # V codigos-de-error, L: "no such transaction"; with HTTP 404 for a form that nobody has paid.
    not_found_codes=frozenset({20}),
    # V api-implementacion. What is answered past it is not published.
    queries_per_minute=30,
    # V api-implementacion: 5 minutes to approve a push; V boton-de-pago-por-redireccion: 10 minutes for a form.
    sale_window=300,
    form_window=600,
    max_lengths={
        # V L boton-de-pago-por-redireccion; for a Sale none is published.
        "client_transaction_id": 50,
        # V L boton-de-pago-por-redireccion
        "reference": 100,
    },
    ranges={
        # V api-implementacion: hours from UTC.
        "time_zone": (-12, 14),
        # V api-implementacion: cents.
        "amount": (1, 99_999_999),
        "amount_without_tax": (0, 99_999_999),
        "amount_with_tax": (0, 99_999_999),
        "tax": (0, 99_999_999),
        "service": (0, 99_999_999),
        "tip": (0, 99_999_999),
    },
    status=StatusProfile(
        # V C api-implementacion: an object.
        by_transaction_id="/api/Sale/{transaction_id}",
        # V C api-implementacion: an array; L: 404 with code 20 for a form that nobody has paid.
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        # V api-implementacion: beside `statusCode` 2, 1 and 3. The Spanish words stand in its prose only.
        state_field="transactionStatus",
        states={"Pending": "Pendiente", "Canceled": "Cancelado", "Approved": "Aceptado"},
        code_field="statusCode",
        codes={1: "Pendiente", 2: "Cancelado", 3: "Aceptado"},
    ),
    # V boton-de-pago-por-redireccion: repeatable; a paid form that is not confirmed within 5 minutes is reversed.
    confirm=ConfirmProfile(
        path="/api/button/V2/Confirm",
        transaction_id_field="id",
        client_transaction_id_field="clientTxId",
        window=300,
    ),
    # V C boton-de-pago-por-redireccion: appended to an existing query; `id=0` when cancelled, `msg` without an id when
    # the domain is not the registered one.
    returned=ReturnProfile(transaction_id="id", client_transaction_id="clientTransactionId", message="msg"),
    # V cancelar-solicitud: only while pending; else 25 with 2029 inside.
    cancel=UndoProfile(
        by_transaction_id="/api/Cancel",
        transaction_id_field="id",
        by_client_transaction_id="/api/Cancel/Client",
        client_transaction_id_field="clientId",
        too_late_codes=frozenset({25, 2029}),
    ),
    # V reversar-pago: on the same day until 20:00 (UTC-5); else 20, which also says "no such transaction".
    reverse=UndoProfile(
        by_transaction_id="/api/Reverse",
        transaction_id_field="id",
        by_client_transaction_id="/api/Reverse/Client",
        client_transaction_id_field="clientId",
        too_late_codes=frozenset({20}),
    ),
    # Not set: `link_hosts`, since the hosts of the forms rest on clients alone (C); `refusing_statuses`, since no HTTP
    # status is published that creates nothing whatever its body (L C: 400 for 800 and 23, 404 for 20, 100 and 120).
)

#: By the name that stands for them wherever a profile is taken.
PRESETS = {profile.name: profile for profile in (DOCUMENT, PAYPHONE)}


def find_profile(profile: ServiceProfile | str | os.PathLike[str]) -> ServiceProfile:
    """A profile itself, a preset by its name, or the profile of a TOML file's path."""
    if isinstance(profile, ServiceProfile):
        return profile
    preset = PRESETS.get(profile) if isinstance(profile, str) else None
    if preset is not None:
        return preset
    try:
        return ServiceProfile.load(os.fspath(profile))
    except ConfigurationError as error:
        fault = str(error)
    if not os.path.exists(profile):
        fault += f"; the presets are {', '.join(PRESETS)}"
    raise ConfigurationError(fault)
