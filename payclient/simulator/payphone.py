"""One real service as its public documentation and its clients tell of it; the default stays the document.

Marks: V vendor's documentation or official code, L a third party's record of the live service, C several
clients, 1 one client. "Unpublished" is what nobody says: each such point is one setting, so that a test can try
the other answer.
"""

from typing import Final

from .answers import Answers
from .settings import ACCEPTED, CANCELLED, PENDING, Settings

__all__ = ["PAYPHONE", "TEST_MODE"]

#: The service's test mode approves everything, at once (V).
TEST_MODE: Final = Answers(approve=1.0, reject=0.0, ignore=0.0, delay=(1.0, 0.0))

_CENTS: Final = (0, 99_999_999)

PAYPHONE: Final = Settings(
    # Any case of names and paths, `AmountWithOutTax`, explicit nulls, unknown fields, `ClientTransactionId` as a
    # number, Reverse `id` as a string, form-urlencoded bodies (V C).
    tolerant=True,
    nick_name_flag="chargeByNickName",  # V
    phone_optional_by_nick_name=True,  # V
    language_field="lang",  # V: `es` or `en`
    accept_language=True,  # V
    # V. The document asks for the currency; which one is taken where none is named is unpublished.
    sale_may_lack=frozenset({"currency"}),
    prepare_may_lack=frozenset({"currency", "storeId"}),
    default_currency="USD",
    ranges={  # V
        "amount": (1, 99_999_999),
        **dict.fromkeys(("amountWithoutTax", "amountWithTax", "tax", "service", "tip"), _CENTS),
        "timeZone": (-12, 14),
    },
    # V L. Of a Sale's clientTransactionId unpublished: no limit.
    sale_max_lengths={"reference": 100},
    prepare_max_lengths={"clientTransactionId": 50, "reference": 100},
    paths={
        "confirm": ("/api/button/V2/Confirm",),  # V
        "cancel": ("/api/Cancel",),  # V
        "cancel_by_client_id": ("/api/Cancel/Client",),  # V
        "reverse": (
            "/api/Reverse",
            "/api/Reverse/Set",
        ),  # V; the second is what an official plugin still calls
        "reverse_by_client_id": ("/api/Reverse/Client",),  # V
        "regions": ("/api/Regions",),  # V
    },
    regions=({"name": "Ecuador", "prefixNumber": "593", "iso": "EC"},),  # V the shape; the list is ours
    status_by_transaction_id="/api/Sale/{transaction_id}",  # V C: an object
    status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",  # V C: an array
    client_status_as_array=True,
    state_field="transactionStatus",  # V
    state_words={PENDING: "Pending", CANCELLED: "Canceled", ACCEPTED: "Approved"},  # V
    full_status=True,  # V
    status_nulls=False,  # V: absent values may be left out, and may be null
    utc_offset=-5.0,  # V of the reversal's hour; the zone of `date` is unpublished
    queries_per_minute=30,  # V
    rate_limited_status=429,  # unpublished, as is Retry-After
    rate_limited_retry_after=True,
    duplicate_code=23,  # V
    not_found=(404, 20),  # L
    error_statuses={800: 400, 23: 400, 20: 404, 100: 404, 120: 404},  # L C
    error_status=400,  # of all other codes, 22 and 25 among them, unpublished
    empty_errors=False,  # V: a recorded error of Reverse
    unauthorized_status=401,  # L C: a message without errorCode
    unauthorized_message="Su aplicación no esta autorizada para acceder a este recurso",
    form_paths={"wallet": "/PayPhone/Index", "card": "/Anonymous/Index"},  # C
    wallet_link_field="payWithPayPhone",  # V
    payment_code_link_field="payWithPaymentCode",  # V
    payment_code_path="/PaymentCode/Index",  # unpublished
    denied_status=200,  # L: a "No autorizado" page, if no referrer comes
    domain_problem_redirects=True,  # C: `msg=` without id
    redirect_id_field="id",  # V C
    redirect_client_id_field="clientTransactionId",
    cancelled_redirect_id=0,  # V C
    cancel_leads_to_response_url=True,  # unpublished, where there is no `cancellationUrl`
    confirm_window=300.0,  # V
    state_until_confirmed=ACCEPTED,  # unpublished
    state_after_reverse=CANCELLED,  # unpublished
    reversal_hour=20,  # V: same day until 20:00 UTC-5
    notification_method="GET",  # C
    notification_id_field="id",  # V
    notification_client_id_field="clientTransactionID",  # V; the case of its last letter is doubtful
    external_notification_on_confirm=False,  # unpublished; `external_notification_url` is the merchant's (V)
)
