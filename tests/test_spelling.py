"""The one rule of spelling, against the tables of the document."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient.models import BillTo, LineItem, Order, PrepareRequest, PrepareResult, SaleRequest, SaleResult
from payclient.validation import from_service, to_service

#: §2.2, without the flag, whose name is not shown.
SALE = """phoneNumber countryCode amount amountWithoutTax amountWithTax tax service tip currency clientTransactionId
storeId reference responseUrl timeZone lat lng clientUserId optionalParameter1 optionalParameter2
optionalParameter3 order nickName"""

#: §2.3, without the language parameter, whose name is not shown.
PREPARE = """amount amountWithoutTax amountWithTax tax service tip currency clientTransactionId storeId reference
phoneNumber email documentId responseUrl cancellationUrl optionalParameter order timeZone lat lng"""

#: §2.4
ORDER = "billTo lineItems"
BILL_TO = """billToId address1 address2 country state locality firstName lastName phoneNumber email postalCode
customerId ipAddress"""
LINE_ITEM = "productName unitPrice quantity totalAmount taxAmount productSKU productDescription"

MODELS = [
    (SaleRequest, SALE, {"by_nick_name"}), (PrepareRequest, PREPARE, {"language"}), (Order, ORDER, set()),
    (BillTo, BILL_TO, set()), (LineItem, LINE_ITEM, set()), (SaleResult, "transactionId", {"raw"}),
    (PrepareResult, "paymentId", {"links", "raw", "wallet_link_field"}),
]  # fmt: skip


def names(model: type) -> list[str]:
    return [field.name for field in attrs.fields(model)]


@pytest.mark.parametrize(("model", "table", "ours"), MODELS)
def test_every_field_is_spelled_as_in_the_document(model: type, table: str, ours: set[str]) -> None:
    """§2.2 to §2.6: a model has the fields of its table, no more and no less."""
    assert {to_service(name) for name in names(model) if name not in ours} == set(table.split())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("productSKU", "product_sku"), ("ResponseUrl", "response_url"),
        ("clientTransactionID", "client_transaction_id"),
        ("amount", "amount"), ("optionalParameter1", "optional_parameter1"), ("address2", "address2"),
    ],
)  # fmt: skip
def test_other_spellings_of_the_samples_are_read(theirs: str, ours: str) -> None:
    """§2.3 and §6 spell some names in other letter cases."""
    assert from_service(theirs) == ours


@given(st.lists(st.from_regex(r"[a-z]{2,8}[0-9]{0,2}", fullmatch=True), min_size=1, max_size=4))
def test_any_name_of_words_comes_back(words: list[str]) -> None:
    """The rule loses nothing of a name made of words."""
    name = "_".join(words)
    assert from_service(to_service(name)) == name
