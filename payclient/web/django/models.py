"""The views of a PostgreSQL ledger as models to read, without digests, the service's words and operators' names."""

from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import models


class _Moment(models.Field):  # type: ignore[misc]  # Django has no types
    def from_db_value(self, value: float | None, *_: object) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value, UTC)


def _model(name: str, view: str, key: str, *, texts: str, numbers: str, moments: str) -> Any:
    """Make an unmanaged model, newest rows first; the names of columns are separated by blanks. Amounts are cents."""
    schema = getattr(settings, "PAYCLIENT_SCHEMA", "payclient")
    kinds = ((models.TextField, texts), (models.BigIntegerField, numbers), (_Moment, moments))
    fields = {column: kind() for kind, columns in kinds for column in columns.split()}
    options = {"managed": False, "db_table": f'"{schema}"."{view}"', "default_permissions": ("view",)}
    meta = type("Meta", (), {**options, "ordering": [f"-{key}"]})
    primary = {key: models.BigIntegerField(primary_key=True)}
    shown = {"__str__": lambda row: row.client_transaction_id}
    return type(name, (models.Model,), {**fields, **primary, **shown, "Meta": meta, "__module__": __name__})


ChargeRecord: Any = _model(
    "ChargeRecord",
    view="records",
    key="id",
    texts="client_transaction_id purchase kind state evidence currency",
    numbers="attempt amount transaction_id error_code",
    moments="created_at expires_at notified_at decided_at",
)
ChargeChange: Any = _model(
    "ChargeChange",
    view="history",
    key="cursor",
    texts="client_transaction_id event before after evidence",
    numbers="attempt",
    moments="at",
)
