"""A Django site whose admin shows a ledger: prints what its pages answer. Arguments: port, database, user."""

from __future__ import annotations

import json
import sys

import django
from django.conf import settings

from shops.serving import ROOT

port, name, user = sys.argv[1:]
ledger = {
    "ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": user, "HOST": "127.0.0.1", "PORT": port,
}  # fmt: skip
own = {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}
named = ("admin", "auth", "contenttypes", "sessions", "messages")
of_guide = {"INSTALLED_APPS": [f"django.contrib.{each}" for each in named]}
guide = (ROOT / "payclient" / "guide" / "django.md").read_text("utf-8")
exec(guide.partition("# settings.py")[2].partition("```")[0], of_guide)  # noqa: S102 - our own document
settings.configure(
    SECRET_KEY="only for trying it out",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={"default": own, "ledger": ledger},
    USE_TZ=True,
    STATIC_URL="static/",
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]},
    }],
    **{name: value for name, value in of_guide.items() if name.isupper()},
)  # fmt: skip
django.setup()

from django.contrib import admin  # noqa: E402 - once the apps are there
from django.contrib.auth.models import Permission, User  # noqa: E402 - the same
from django.core.management import call_command  # noqa: E402 - the same
from django.test import Client  # noqa: E402 - the same
from django.urls import path  # noqa: E402 - the same

urlpatterns = [path("admin/", admin.site.urls)]

call_command("migrate", verbosity=0)
call_command("check", fail_level="WARNING")
call_command("makemigrations", "--check", verbosity=0)
boss = User.objects.create_superuser("boss", password="x")
clerk = User.objects.create_user("clerk", password="x", is_staff=True)
clerk.user_permissions.add(Permission.objects.get(codename="view_chargerecord"))

answers = {}
for user in (boss, clerk):
    client = Client()
    client.force_login(user)
    for address in (
        "", "payclient/chargerecord/", "payclient/chargerecord/?q=order-17", "payclient/chargerecord/?state=pending",
        "payclient/chargerecord/?q=cart-9",
        "payclient/chargerecord/1/change/", "payclient/chargerecord/add/", "payclient/chargerecord/1/delete/",
        "payclient/chargechange/", "payclient/chargechange/1/change/",
    ):  # fmt: skip
        answer = client.get(f"/admin/{address}")
        answers[f"{user} {address}"] = [answer.status_code, answer.content.decode()]
    answer = client.post("/admin/payclient/chargerecord/1/change/", {"state": "accepted"})
    answers[f"{user} POST"] = [answer.status_code, ""]
print(json.dumps(answers))
