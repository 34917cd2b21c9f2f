"""The HTML that a customer sees. What comes from outside is escaped, and nothing is loaded from elsewhere."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from .forms import Form, Language, Method

__all__ = ["ASKED", "STYLE_HASH", "denied_page", "form_page", "missing", "notice_page"]

#: The data for which a form asks if it was not given (§2.3): the attribute of `Form` by the input's name.
ASKED: Final[dict[str, str]] = {"phoneNumber": "phone_number", "email": "email", "documentId": "document_id"}

_INPUTS: Final[dict[str, str]] = {
    "phoneNumber": 'type="tel" autocomplete="tel" placeholder="+593999999999"',
    "email": 'type="email" autocomplete="email"',
    "documentId": 'type="text" autocomplete="off"',
}

_TEXTS: Final[dict[Language, dict[str, str]]] = {
    "es": {
        "simulated": "Servicio simulado: no se mueve dinero real. No escriba datos reales.",
        "wallet": "Pago con la app",
        "card": "Pago con tarjeta",
        "store": "Comercio",
        "reference": "Motivo",
        "number": "Transacción",
        "phoneNumber": "Teléfono, con + y código de país",
        "email": "Correo electrónico",
        "documentId": "Número de identificación",
        "missing": "Complete los datos que faltan.",
        "pay": "Pagar",
        "reject": "Simular un rechazo",
        "cancel": "Cancelar el pago",
        "paid": "Este pago ya fue realizado.",
        "declined": "Este pago ya fue rechazado.",
        "cancelled": "Este pago fue cancelado.",
        "expired": "Este formulario ha expirado. Se debe preparar uno nuevo.",
        "unknown": "Este pago no existe.",
        "unreadable": "No se entiende lo que se envió.",
    },
    "en": {
        "simulated": "Simulated service: no real money moves. Do not enter real data.",
        "wallet": "Pay with the app",
        "card": "Pay by card",
        "store": "Merchant",
        "reference": "Reference",
        "number": "Transaction",
        "phoneNumber": "Phone, with + and country code",
        "email": "E-mail",
        "documentId": "Identification number",
        "missing": "Please fill in what is missing.",
        "pay": "Pay",
        "reject": "Simulate a decline",
        "cancel": "Cancel the payment",
        "paid": "This payment was already made.",
        "declined": "This payment was already declined.",
        "cancelled": "This payment was cancelled.",
        "expired": "This form has expired. A new one must be prepared.",
        "unknown": "There is no such payment.",
        "unreadable": "What was sent cannot be read.",
    },
}

_STYLE: Final = """
:root{color-scheme:light dark;--page:#f2f4f7;--card:#fff;--text:#1c2430;--soft:#596275;--line:#7b8494;--main:#1d5fbf;\
--on-main:#fff;--note:#fff3cd;--on-note:#5c4400;--bad:#a8071a}
@media(prefers-color-scheme:dark){:root{--page:#10151d;--card:#1a212c;--text:#eef1f6;--soft:#a9b3c3;--line:#5d6a80;\
--main:#8ab4f8;--on-main:#10151d;--note:#4a3a10;--on-note:#ffe9a8;--bad:#ff8a8a}}
*{box-sizing:border-box}
body{margin:0;padding:1rem;background:var(--page);color:var(--text);font:1rem/1.5 system-ui,sans-serif}
main{position:relative;max-width:26rem;margin:0 auto;padding:1.5rem;background:var(--card);border-radius:.75rem}
@media(min-width:40rem){main{margin-top:min(8vh,5rem)}}
h1{margin:0 3rem 1rem 0;font-size:1.25rem}
p{margin:0 0 1rem}
dl{display:grid;grid-template-columns:auto 1fr;gap:.25rem 1rem;margin:0 0 1.5rem}
dt{color:var(--soft)}
dd{margin:0;text-align:right;overflow-wrap:anywhere}
label{display:block;margin:0 0 1rem}
input{display:block;width:100%;min-height:3rem;padding:0 .75rem;border:1px solid var(--line);border-radius:.5rem;\
background:var(--card);color:inherit;font:inherit}
button{display:block;width:100%;min-height:3rem;margin:0 0 .75rem;border:1px solid var(--main);border-radius:.5rem;\
background:var(--card);color:var(--main);font:inherit;cursor:pointer}
button.pay{background:var(--main);color:var(--on-main);font-weight:600}
button.x{position:absolute;top:1rem;right:1rem;width:3rem;margin:0;border:0;color:var(--text);font-size:1.25rem}
.amount{font-size:2rem;font-weight:600;line-height:1.2}
.simulated{padding:.5rem .75rem;border-radius:.5rem;background:var(--note);color:var(--on-note);font-size:.875rem}
.missing{color:var(--bad)}
"""
#: As a Content-Security-Policy names it: no other style is obeyed.
STYLE_HASH: Final = f"sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}"


def form_page(form: Form, method: Method, *, typed: Mapping[str, str] | None = None) -> str:
    """The form. `typed` is what the customer has typed so far, if something is missing."""
    texts = _TEXTS[form.language]
    rows = [(texts["store"], form.store_id), (texts["reference"], form.reference)]
    rows.append((texts["number"], form.client_transaction_id))
    return _page(
        form.language,
        texts[method],
        f"""
<form method="post">
<button class="x" name="outcome" value="cancel" aria-label="{texts["cancel"]}">&#x2715;</button>
</form>
<p class="amount">{escape(_money(form))}</p>
<dl>
{_lines(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in rows if value)}
</dl>
{"" if typed is None else f'<p class="missing" role="alert">{texts["missing"]}</p>'}
<form method="post">
{_lines(_input(name, texts[name], (typed or {}).get(name, "")) for name in missing(form))}
<button class="pay" name="outcome" value="pay">{texts["pay"]}</button>
<button name="outcome" value="reject" formnovalidate>{texts["reject"]}</button>
</form>""",
    )


def notice_page(text: str, *, form: Form | None = None) -> str:
    """A page that says one thing, such as "expired", in the form's language."""
    language: Language = "es" if form is None else form.language
    texts = _TEXTS[language]
    amount = "" if form is None else f'<p class="amount">{escape(_money(form))}</p>\n'
    return _page(language, texts[text], amount)


def denied_page(host: str | None) -> str:
    """The access-denied page (§4, §7.7) in both languages, for the merchant's developer above all."""
    if host is None:
        spanish = "La redirección no dijo de qué sitio viene (cabecera Referer)."
        english = "The redirect did not say from which site it comes (Referer header)."
    else:
        name = escape(ascii(host))
        spanish = f"El dominio {name} no está registrado."
        english = f"The domain {name} is not registered."
    return _page(
        "es",
        "No autorizado / Not authorized",
        f"""
<p>{spanish} El formulario solo se abre desde el dominio registrado, con una Referrer-Policy como
<code>origin</code> u <code>origin-when-cross-origin</code>.</p>
<p lang="en">{english} The form opens only from the registered domain, with a Referrer-Policy such as
<code>origin</code> or <code>origin-when-cross-origin</code>.</p>""",
    )


def missing(form: Form) -> list[str]:
    """The names of the inputs for data that was not given."""
    return [name for name, attribute in ASKED.items() if getattr(form, attribute) is None]


def _input(name: str, label: str, value: str) -> str:
    attributes = f'name="{name}" value="{escape(value)}" {_INPUTS[name]} maxlength="100" required'
    return f"<label>{label}<input {attributes}></label>"


def _money(form: Form) -> str:
    units, cents = divmod(abs(form.amount), 100)
    return f"{form.currency} {'-' if form.amount < 0 else ''}{units}.{cents:02}"


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def _page(language: Language, title: str, content: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="simulated">{_TEXTS[language]["simulated"]}</p>
{content.strip()}
</main>
</body>
</html>
"""
