"""The app `payclient.web.django`, for `INSTALLED_APPS`: its permissions are `payclient.view_chargerecord` and such."""

from django.apps import AppConfig


class _Payclient(AppConfig):  # type: ignore[misc]  # Django has no types
    name, label = "payclient.web.django", "payclient"
