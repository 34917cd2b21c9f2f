"""The ledger in Django's admin: nothing can be added, changed or deleted there."""

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from payclient.web.django.models import ChargeChange, ChargeRecord


class _ReadOnly(admin.ModelAdmin):  # type: ignore[misc]  # Django has no types
    search_fields, show_full_result_count, actions = ("client_transaction_id",), False, None

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).using(getattr(settings, "PAYCLIENT_DATABASE", "default"))

    def has_add_permission(self, *_: object) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


_OF_CHARGES = ("client_transaction_id", "state", "amount", "currency", "kind", "created_at", "decided_at")
_OF_CHANGES = ("at", "client_transaction_id", "event", "before", "after", "evidence")
admin.site.register(ChargeRecord, _ReadOnly, list_display=_OF_CHARGES, list_filter=("state", "kind"))
admin.site.register(ChargeChange, _ReadOnly, list_display=_OF_CHANGES)
