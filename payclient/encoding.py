"""Models -> bytes, by cattrs and with the names of one profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

import attrs
import orjson

from payclient.errors import ConfigurationError, ErrorDetail, InvalidRequestError
from payclient.models import BillTo, LineItem, Order, PrepareRequest, SaleRequest
from payclient.profile import ServiceProfile
from payclient.spelling import to_service

__all__: list[str] = []

_T = TypeVar("_T", bound=attrs.AttrsInstance)


class Encoder:
    """Encodes requests with the names of one profile."""

    def __init__(self, profile: ServiceProfile) -> None:
        self._profile = profile
        self._sale, self._prepare = _unstructurers(
            profile.nick_name_flag, profile.language_field, profile.response_url_field
        )
        self._checks = bool(profile.max_lengths or profile.ranges)
        known = {field.name for model in (SaleRequest, PrepareRequest) for field in attrs.fields(model)}
        for setting, names in (("max_lengths", profile.max_lengths), ("ranges", profile.ranges)):
            for name in names:
                if name not in known:
                    raise ConfigurationError(f"profile setting {setting}: no request has a field {name}")

    def sale(self, request: SaleRequest) -> bytes:
        """The body of a Sale (§2.2). `InvalidRequestError`, `ConfigurationError`: what the profile knows."""
        if request.by_nick_name:
            if self._profile.nick_name_flag is None:
                raise ConfigurationError("charging a nick name needs nick_name_flag in the profile")
            if request.phone_number is None and not self._profile.phone_optional_with_nick_name:
                _refuse(request, "phone_number", "is required")
        if self._checks:
            self._check(request)
        return orjson.dumps(self._sale(request))

    def prepare(self, request: PrepareRequest) -> bytes:
        """The body of a Button/Prepare (§2.3)."""
        if request.language is not None and self._profile.language_field is None:
            raise ConfigurationError("a form's language needs language_field in the profile")
        if self._checks:
            self._check(request)
        return orjson.dumps(self._prepare(request))

    def _check(self, request: SaleRequest | PrepareRequest) -> None:
        # Raised here, where no local variable holds a value: error trackers show them.
        if faults := self._faults(request):
            raise InvalidRequestError(errors=faults, client_transaction_id=request.client_transaction_id)

    def _faults(self, request: SaleRequest | PrepareRequest) -> list[ErrorDetail]:
        faults = []
        for name, longest in self._profile.max_lengths.items():
            value = getattr(request, name, None)
            if isinstance(value, str) and len(value) > longest:
                faults.append(_fault(name, f"is longer than {longest} characters"))
        for name, (smallest, largest) in self._profile.ranges.items():
            value = getattr(request, name, None)
            if type(value) is int and not smallest <= value <= largest:
                faults.append(_fault(name, f"is {smallest} to {largest}"))
        return faults


def _fault(name: str, description: str) -> ErrorDetail:
    return ErrorDetail("Amount" if name == "amount" else to_service(name), 0, (description,))


def _refuse(request: SaleRequest, name: str, description: str) -> NoReturn:
    raise InvalidRequestError(
        errors=[_fault(name, description)], client_transaction_id=request.client_transaction_id
    )


@lru_cache(maxsize=16)
def _unstructurers(
    nick_name_flag: str | None, language_field: str | None, response_url_field: str
) -> tuple[Callable[[SaleRequest], dict[str, Any]], Callable[[PrepareRequest], dict[str, Any]]]:
    """The functions that cattrs writes for a profile's names; the models checked every value already."""
    import cattrs.fns  # with the first session: who reads a ledger or takes notifications needs none of it
    from cattrs.gen import make_dict_unstructure_fn, override

    converter = cattrs.Converter(detailed_validation=False)

    def write(
        model: type[_T], names: Mapping[str, str | None], **inner: Callable[[Any], Any]
    ) -> Callable[[_T], dict[str, Any]]:
        """`names` are the profile's (None: left out), all others the service's; `inner` functions are called."""
        rules: dict[str, Any] = {}
        for field in attrs.fields(model):
            name = names.get(field.name, to_service(field.name))
            hook = inner.get(field.name, cattrs.fns.identity)
            rules[field.name] = override(rename=name, omit=name is None, unstruct_hook=hook)
        return make_dict_unstructure_fn(model, converter, _cattrs_omit_if_default=True, **rules)

    bill_to, item = write(BillTo, {}), write(LineItem, {})
    order = write(Order, {}, bill_to=bill_to, line_items=lambda items: [item(one) for one in items])
    sale = write(SaleRequest, {"by_nick_name": nick_name_flag}, order=order)
    prepare_names = {"language": language_field, "response_url": response_url_field}
    return sale, write(PrepareRequest, prepare_names, order=order)
