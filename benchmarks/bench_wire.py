"""What building, checking and encoding a full Sale costs beside attrs validators and pydantic.

Run: python benchmarks/bench_wire.py. The pydantic row needs `pip install pydantic`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from attrs import validators as v
from cattrs.gen import make_dict_unstructure_fn, override
from cattrs.preconf.orjson import make_converter

from _measure import pin, ratio, row, time_of
from payclient.models import BillTo, LineItem, Order, SaleRequest
from payclient.profile import DOCUMENT
from payclient.validation import to_service
from payclient.wire import encode_sale

SALE: dict[str, Any] = {
    "phone_number": "0984111222", "country_code": "593", "amount": 315, "amount_without_tax": 200,
    "amount_with_tax": 100, "tax": 15, "service": 0, "tip": 0, "currency": "USD", "store_id": "your_storeId",
    "client_transaction_id": "ID_UNICO_X_TRANSACCION-001", "reference": "Motivo de cobro con Sale",
    "response_url": "https://your_domain.com/webhook/resultParameters", "time_zone": -5, "lat": "-1.831239",
    "lng": "-78.183406", "client_user_id": "idUserClient.001", "optional_parameter1": "Informacion Adicional 1",
    "optional_parameter2": "Informacion Adicional 2", "optional_parameter3": "Informacion Adicional 3",
}  # fmt: skip
BILL_TO: dict[str, Any] = {
    "bill_to_id": 12, "address1": "Colorado Springs", "address2": "Denver", "country": "EC", "state": "Azuay",
    "locality": "Cuenca", "first_name": "Elisabeth", "last_name": "Sobeck", "phone_number": "+593999999999",
    "email": "aloy@mail.com", "postal_code": "EC090108", "customer_id": "idUserClient.001",
    "ip_address": "127.0.0.1",
}  # fmt: skip
ITEM: dict[str, Any] = {
    "product_name": "Producto Vendido", "unit_price": 100, "quantity": 1, "total_amount": 115, "tax_amount": 15,
    "product_sku": "3342.0004", "product_description": "Descripción Producto",
}  # fmt: skip


def full() -> SaleRequest:
    """A Sale with every field of the document's full shape."""
    return SaleRequest(**SALE, order=Order(bill_to=BillTo(**BILL_TO), line_items=(LineItem(**ITEM),)))


#: An id has no control characters and no blanks at its ends; an address begins like one.
IDENTIFIER = r"[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?"
ADDRESS = r"[Hh][Tt][Tt][Pp][Ss]?://[^\x00-\x1f\x7f-\x9f]*"

# The same rules as ours, as patterns and as attrs' own validators say them.
PLAIN = r"[^\x00-\x1f\x7f-\x9f]*"
SHORT = {
    "currency": "[A-Z]{3}", "country": "[A-Z]{2}", "country_code": r"\+?[0-9]{1,4}",
    "lat": r"[+-]?[0-9]{1,3}(\.[0-9]{1,20})?", "lng": r"[+-]?[0-9]{1,3}(\.[0-9]{1,20})?",
}  # fmt: skip
LONG = {"client_transaction_id": IDENTIFIER, "store_id": IDENTIFIER, "response_url": ADDRESS}


def _text(pattern: str, *more: Any) -> Any:
    return v.and_(v.instance_of(str), *more, v.matches_re(pattern))


_TEXT = _text(PLAIN, v.max_len(4096))
_CENTS = v.and_(v.instance_of(int), v.ge(0), v.le(10**18))
_RULES: dict[str, Any] = {
    **{name: _text(pattern) for name, pattern in SHORT.items()},
    **{name: _text(pattern, v.max_len(4096)) for name, pattern in LONG.items()},
    "time_zone": v.instance_of(int),
    "by_nick_name": v.instance_of(bool),
}
_TYPES = {"str | None": str | None, "int | None": int | None, "str": str, "int": int, "bool": bool}


def twin(
    model: type, *, checked: bool, inner: dict[str, Any] | None = None, spell: Callable[[str], str] = str
) -> type:
    """The same class without our check: bare, or with a validator for each field."""
    fields: dict[str, Any] = {}
    for field in attrs.fields(model):
        kind = (inner or {}).get(field.name)
        rule: Any = None
        if checked and kind is not None:
            rule = v.optional(
                v.deep_iterable(v.instance_of(kind)) if field.name == "line_items" else v.instance_of(kind)
            )
        elif checked:
            rule = v.optional(_RULES.get(field.name) or (_CENTS if "int" in str(field.type) else _TEXT))
        typed: Any = _TYPES.get(str(field.type))
        if kind is not None:
            typed = tuple[kind, ...] if field.name == "line_items" else kind | None
        fields[spell(field.name)] = attrs.field(default=None, validator=rule, type=typed)
    body = _sum_rule(spell) if checked and model is SaleRequest else None
    return attrs.make_class(model.__name__, fields, frozen=True, slots=True, kw_only=True, class_body=body)


def _sum_rule(spell: Callable[[str], str]) -> dict[str, Any]:
    """The sum rule (§2.1), as a method that attrs calls after the fields' validators."""
    a, b, c, d, e = map(spell, ("amount_without_tax", "amount_with_tax", "tax", "service", "tip"))
    source = f"""
def check(self):
    if self.amount != (self.{a} or 0) + (self.{b} or 0) + (self.{c} or 0) + (self.{d} or 0) + (self.{e} or 0):
        raise ValueError("amount is not the sum of its parts")
    if self.{a} is not None and self.{b} is not None and self.{c} is None:
        raise ValueError("tax is required")
"""
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102 - a benchmark's own text, with either spelling
    return {"__attrs_post_init__": scope["check"]}


def validators() -> Callable[[], bytes]:
    """attrs validators + cattrs.preconf.orjson, as its documentation shows it."""
    bill_to, item = twin(BillTo, checked=True), twin(LineItem, checked=True)
    order = twin(Order, checked=True, inner={"bill_to": bill_to, "line_items": item})
    sale = twin(SaleRequest, checked=True, inner={"order": order})
    converter = make_converter()
    for model in (bill_to, item, order, sale):
        converter.register_unstructure_hook(
            model,
            make_dict_unstructure_fn(
                model, converter, _cattrs_omit_if_default=True,
                **{field.name: override(rename=to_service(field.name)) for field in attrs.fields(model)},
            ),
        )  # fmt: skip
    return lambda: converter.dumps(
        sale(**SALE, order=order(bill_to=bill_to(**BILL_TO), line_items=(item(**ITEM),)))
    )


def pydantic() -> Callable[[], bytes] | None:
    """The same graph with the same rules in pydantic v2, or None where it is not installed."""
    try:
        from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
    except ImportError:
        return None

    class Base(BaseModel):
        model_config = ConfigDict(frozen=True, strict=True, alias_generator=to_service, populate_by_name=True)

    class Summed(Base):
        """The sum rule (§2.1) is a function in either."""

        @model_validator(mode="after")
        def check(self) -> Any:
            a, b, c = self.amount_without_tax, self.amount_with_tax, self.tax
            if self.amount != (a or 0) + (b or 0) + (c or 0) + (self.service or 0) + (self.tip or 0):
                raise ValueError("sum")
            if a is not None and b is not None and c is None:
                raise ValueError("tax")
            return self

    def text(pattern: str) -> Any:
        return (str | None, Field(None, max_length=4096, pattern=f"^{pattern}$"))

    cents = (int | None, Field(None, ge=0, le=10**18))
    plain = text(PLAIN)
    special = {name: text(each) for name, each in (SHORT | LONG).items()} | {"time_zone": (int | None, None)}

    def model(name: str, source: type, base: type = Base, **inner: Any) -> Any:
        rules = special | inner
        fields: Any = {
            field.name: rules.get(field.name) or (cents if "int" in str(field.type) else plain)
            for field in attrs.fields(source)
            if field.name != "by_nick_name"
        }
        return create_model(name, __base__=base, **fields)

    bill_to = model("BillTo", BillTo, phone_number=text(r"\+[1-9][0-9]{5,14}"))
    item = model("LineItem", LineItem)
    order = model("Order", Order, bill_to=(bill_to | None, None), line_items=(tuple[item, ...], ()))
    sale = model("Sale", SaleRequest, Summed, order=(order | None, None))
    return lambda: (
        sale(**SALE, order=order(bill_to=bill_to(**BILL_TO), line_items=(item(**ITEM),)))
        .model_dump_json(by_alias=True, exclude_none=True)
        .encode()
    )


def main() -> None:
    pin(0)
    bare = twin(SaleRequest, checked=False)
    calls: dict[str, Callable[[], object] | None] = {
        "ours": lambda: encode_sale(full(), DOCUMENT).body,
        "attrs validators": validators(),
        "pydantic v2": pydantic(),
        "checked": lambda: SaleRequest(**SALE),
        "unchecked": lambda: bare(**SALE),
    }
    figures: dict[str, list[float]] = {name: [] for name, call in calls.items() if call is not None}
    for number in range(10):
        for name, call in calls.items():
            if call is not None:
                figure = time_of(call, 20_000)
                if number:  # the first round warms up
                    figures[name].append(figure)
    for name, row_of in figures.items():
        print(f"      {min(row_of):7.2f} us CPU at best  {name}")
    row("build a full Sale and encode it", ratio(figures["ours"], figures["attrs validators"]), 0.5,
        "attrs validators + cattrs.preconf.orjson")  # fmt: skip
    if "pydantic v2" in figures:
        row("the same", ratio(figures["ours"], figures["pydantic v2"]), 0.85, "pydantic v2 model_dump_json")
    else:
        print("      pydantic is not installed: its row was not measured")
    row(
        "checked construction", ratio(figures["checked"], figures["unchecked"]), 1.8, "unchecked frozen attrs"
    )


if __name__ == "__main__":
    main()
