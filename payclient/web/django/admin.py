"""The ledger in Django's admin: nothing can be added, changed or deleted there."""

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from payclient.web.django.models import ChargeChange, ChargeRecord


class _ReadOnly(admin.ModelAdmin):  # type: ignore[misc]  # Django has no types
    show_full_result_count, actions = False, None

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).using(getattr(settings, "PAYCLIENT_DATABASE", "default"))

    def has_add_permission(self, *_: object) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


_ID = ("client_transaction_id",)
#: By its order, too: the id of a form is not the shop's own.
_NAMES = (*_ID, "purchase")
_OF_CHARGES = (*_NAMES, "state", "amount", "currency", "kind", "created_at", "decided_at")
_OF_CHANGES = ("at", *_ID, "event", "before", "after", "evidence")
admin.site.register(
    ChargeRecord, _ReadOnly, list_display=_OF_CHARGES, list_filter=("state", "kind"), search_fields=_NAMES
)
admin.site.register(ChargeChange, _ReadOnly, list_display=_OF_CHANGES, search_fields=_ID)
