"""One real service as its public documentation and its clients tell of it; the default stays the document.

Marks: V vendor's documentation or official code, L a third party's record of the live service, C several clients,
1 one client. "Unpublished" is what nobody says: each such point is a setting, so that a test can try another answer.
"""

from typing import Final

from .answers import Answers
from .settings import ACCEPTED, CANCELLED, PENDING, Settings

#: The service's test mode approves everything, at once (V).
TEST_MODE: Final = Answers(approve=1.0, reject=0.0, ignore=0.0, delay=(1.0, 0.0))

PAYPHONE: Final = Settings(
    # Any case of names and paths, `AmountWithOutTax`, explicit nulls, unknown fields, `ClientTransactionId` as a
    # number, Reverse `id` as a string, form-urlencoded bodies (V C).
    tolerant=True,
    nick_name_flag="chargeByNickName",  # V
    language_field="lang",  # V: `es` or `en`
    # V; the currency of a request without one is unpublished.
    optional_fields=frozenset({"currency", "storeId", "phoneNumber"}),
    limits={
        "amount": (1, 99_999_999),  # V
        **dict.fromkeys(("amountWithoutTax", "amountWithTax", "tax", "service", "tip"), (0, 99_999_999)),  # V
        "timeZone": (-12, 14),  # V
        "reference": (0, 100),  # V L
        "prepare.clientTransactionId": (0, 50),  # V L; of a Sale's unpublished: no limit
    },
    phone_pattern="0[0-9]{8,9}",  # L: in other spellings refused, by 120 or 800
    paths={
        "confirm": ("/api/button/V2/Confirm",),  # V
        "cancel": ("/api/Cancel",),  # V
        "cancel_by_client_id": ("/api/Cancel/Client",),  # V
        "reverse": ("/api/Reverse", "/api/Reverse/Set"),  # V; an official plugin still calls the second
        "reverse_by_client_id": ("/api/Reverse/Client",),  # V
        "regions": ("/api/Regions",),  # V
        "wallet": ("/PayPhone/Index",),  # C
        "card": ("/Anonymous/Index",),  # C
        "code": ("/PaymentCode/Index",),  # unpublished
    },
    status_by_transaction_id="/api/Sale/{transaction_id}",  # V C: an object
    status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",  # V C: an array
    state_field="transactionStatus",  # V
    state_words={PENDING: "Pending", CANCELLED: "Canceled", ACCEPTED: "Approved"},  # V
    status_detail="full",  # V
    writes_absent=False,  # V: absent values may be left out, and may be null; a recorded error of Reverse
    utc_offset=-5.0,  # V of the reversal's hour; the zone of `date` is unpublished
    queries_per_minute=30,  # V; what is answered past it, and Retry-After, is unpublished
    not_found=(404, 20),  # L
    foreign_is_unauthorized=True,  # L by the service's id; by the merchant's unpublished: not found
    duplicate_code=23,  # V
    refuses_second_form=True,  # V L: also of an id whose form is unpaid
    error_statuses={100: 404, 120: 404},  # L C; of 22 and 25 among others unpublished
    wallet_link_field="payWithPayPhone",  # V
    redirect_names=("id", "clientTransactionId"),  # V C
    returns_without_payment=True,  # V C: `id=0`, `msg=`; unpublished, where there is no `cancellationUrl`
    confirm_window=300.0,  # V; the states before a confirmation and after a reversal are unpublished
    reversal_hour=20,  # V: same day until 20:00 UTC-5
    notification_method="GET",  # C
    notification_names=("id", "clientTransactionID"),  # V; the case of its last letter is doubtful
)
