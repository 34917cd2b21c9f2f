"""The pages of the forms: who may open one (§4), what it shows, and what its buttons do.

Requests of customers are not the merchant's, so they are not in the counts. Text from outside is escaped, and
nothing is loaded from elsewhere.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from html import escape
from importlib.resources import files
from string import Template
from typing import Final
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from .books import Books, with_query
from .messages import REASONS, Language, say
from .routes import Route, package_file
from .transactions import METHODS, Form, Method

#: The inputs for data that the request did not give (§2.3), with their attributes.
_ASKED: Final = {
    "phoneNumber": 'type="tel" autocomplete="tel" placeholder="+593999999999"',
    "email": 'type="email" autocomplete="email"',
    "documentId": 'type="text" autocomplete="off"',
}
_PAGE: Final = Template(files(__package__).joinpath("form.html").read_text(encoding="utf-8"))
_NO_STORE: Final = {"Cache-Control": "no-store"}
_HEADERS: Final = {
    **_NO_STORE,
    # No `form-action`: browsers would apply it to the redirect that follows a payment.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the page's own address is a secret
    "X-Content-Type-Options": "nosniff",
}


def form_routes(books: Books) -> Iterator[Route]:
    settings = books.settings
    yield Route("GET", "/style.css", partial(package_file, "style.css", "text/css", _NO_STORE))
    for method in METHODS:
        for path in settings.paths[method]:
            for verb in ("GET", "POST"):
                yield Route(verb, path, partial(_answer, books, method), settings.tolerant)


async def _answer(
    books: Books, method: Method, request: web.BaseRequest, _: Mapping[str, str]
) -> web.Response:
    """Answer a GET by the page of a link, and a POST by what the button on it does."""
    typed = (await request.read()).decode("utf-8", "replace")
    # From here on nothing waits: two customers who press at the same moment do so one after the other.
    form = books.forms.get(request.query.get("paymentId", ""))
    if request.method == "POST":
        response, note = await _press(books, form, method, typed), ""
    else:
        response, note = _open(books, form, method, _host_of(request.headers.get("Referer", "")))
    # Without the query: it has the payment id, which opens the form.
    books.log_entry("page", f"{request.method} {request.path}{note}", status=response.status)
    return response


def _open(books: Books, form: Form | None, method: Method, host: str | None) -> tuple[web.Response, str]:
    """Return the page of a link, and what its log line says beside the status."""
    settings = books.settings
    if host is None:
        return _denied("no referrer"), ", denied: no referrer came"
    if settings.registered_domains is not None and host not in settings.registered_domains:
        if form is None or not settings.returns_without_payment:
            return _denied("not registered", ascii(host)), ", denied: another domain"
        parameters = {"msg": say("foreign domain", form.language)}
        parameters[settings.redirect_names[1]] = form.client_transaction_id
        return _redirect(with_query(form.response_url, parameters)), ", denied: another domain"
    if form is None:
        return _notice("form unknown", status=404), ""
    if form.how is None:
        books.open_form(form.payment_id, method)
    return _closed(books, form, method) or _form_page(form, method), ""


async def _press(books: Books, form: Form | None, method: Method, text: str) -> web.Response:
    if form is None or method not in form.deadlines:
        return _denied("no referrer")  # without the page there are no buttons
    if (closed := _closed(books, form, method)) is not None:
        return closed
    fields = parse_qs(text)
    typed = {name: fields[name][-1].strip() for name in _ASKED if name in fields}
    match fields.get("outcome", ["pay"])[-1]:
        case "cancel":
            address = await books.cancel_form(form.payment_id, method)
            return _notice("form cancelled", form) if address is None else _redirect(address)
        case "reject":
            reason = next((one for one in REASONS if one in fields.get("reason", ())), None)
            return _redirect(await books.pay(form.payment_id, method, declined=True, reason=reason))
        case "pay" if all(typed.get(name) for name in _missing(form)):
            form.texts = {**typed, **form.texts}
            return _redirect(await books.pay(form.payment_id, method))
        case _:  # the browser lets nothing be missing
            return _notice("form unreadable", form, 400)


def _closed(books: Books, form: Form, method: Method) -> web.Response | None:
    if form.how is not None:
        return _notice(f"form {form.how}", form)
    return _notice("form expired", form, 410) if books.is_expired(form, method) else None


def _missing(form: Form) -> list[str]:
    """Return the names of the inputs for data that was not given."""
    return [name for name in _ASKED if name not in form.texts]


def _form_page(form: Form, method: Method) -> web.Response:
    words = partial(say, language=form.language)
    rows = {
        "store": form.store_id,
        "reference": form.texts.get("reference"),
        "number": form.client_transaction_id,
    }
    inputs = [
        f'<label>{words(name)}<input name="{name}" {_ASKED[name]} maxlength="100" required></label>'
        for name in _missing(form)
    ]
    reasons = [f'<option value="{one}">{words(one)}</option>' for one in REASONS]
    content = f"""<form method="post">
<button class="x" name="outcome" value="cancel" aria-label="{words("close")}">&#x2715;</button>
</form>
{_money(form)}
<dl>{"".join(f"<dt>{words(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows.items() if value)}</dl>
<form method="post">{"".join(inputs)}
<button class="pay primary" name="outcome" value="pay">{words("pay")}</button>
<label>{words("reason")}<select name="reason">{"".join(reasons)}</select></label>
<button name="outcome" value="reject" formnovalidate>{words("decline")}</button>
</form>"""
    return _page(form.language, words(f"{method} form"), content)


def _notice(text: str, form: Form | None = None, status: int = 200) -> web.Response:
    """Return a page of one sentence, in the form's language."""
    language: Language = "es" if form is None else form.language
    return _page(language, say(text, language), "" if form is None else _money(form), status)


def _denied(text: str, *values: str) -> web.Response:
    """Return the access-denied page (§4, §7.7) in both languages, for the merchant's developer above all."""
    languages: tuple[Language, ...] = ("es", "en")
    content = "\n".join(
        f'<p lang="{one}">{escape(say(text, one, *values))} {say("referrer policy", one)}</p>'
        for one in languages
    )
    return _page("es", " / ".join(say("denied", one) for one in languages), content)


def _page(language: Language, title: str, content: str, status: int = 200) -> web.Response:
    text = _PAGE.substitute(
        language=language, title=title, not_real=say("not real", language), content=content
    )
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _redirect(address: str) -> web.Response:
    return web.Response(status=303, headers={**_HEADERS, "Location": address})


def _money(form: Form) -> str:
    units, cents = divmod(abs(form.amount), 100)
    sign = "-" if form.amount < 0 else ""
    return f'<p class="amount">{escape(form.currency)} {sign}{units}.{cents:02}</p>'


def _host_of(address: str) -> str | None:
    """Return the host of a web address in small letters; None if it is not one."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    return parts.hostname if parts.scheme in {"http", "https"} else None
