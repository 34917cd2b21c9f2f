"""The pages of the forms: who may open one (§4), what it shows, and what its buttons do.

What comes from outside is escaped, and nothing is loaded from elsewhere.
"""

from collections.abc import Mapping
from functools import partial
from html import escape
from importlib.resources import files
from string import Template
from typing import Final
from urllib.parse import parse_qs

from aiohttp import web

from .addresses import any_case, host_of, with_query
from .forms import Form, FormBook, Method
from .messages import Language, say
from .transactions import Books

#: The data for which a form asks if it was not given (§2.3), with the attributes of its input.
_ASKED: Final = {
    "phoneNumber": 'type="tel" autocomplete="tel" placeholder="+593999999999"',
    "email": 'type="email" autocomplete="email"',
    "documentId": 'type="text" autocomplete="off"',
}
_PAGE: Final = Template(files(__package__).joinpath("form.html").read_text(encoding="utf-8"))
_HEADERS: Final = {
    "Cache-Control": "no-store",
    # No `form-action`: browsers would apply it to the redirect that follows a payment.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the page's own address is a secret
    "X-Content-Type-Options": "nosniff",
}


class FormPages:
    """The customer's side of the service; its requests are not the merchant's, so they are not in the counts."""

    def __init__(self, books: Books, forms: FormBook) -> None:
        self._books = books
        self._forms = forms

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for way, path in self._books.settings.form_paths.items():
            method: Method = "card" if way == "card" else "wallet"
            spelled = any_case(path) if self._books.settings.tolerant else path
            router.add_get(spelled, partial(self._answer, method), allow_head=False)  # a HEAD is not a load
            router.add_post(spelled, partial(self._answer, method))
        router.add_get("/style.css", self._get_style)

    async def _get_style(self, _: web.Request) -> web.Response:
        text = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
        return web.Response(text=text, content_type="text/css", headers={"Cache-Control": "no-store"})

    async def _answer(self, method: Method, request: web.Request) -> web.Response:
        typed = (await request.read()).decode("utf-8", "replace")
        # From here on nothing is awaited: two customers who press at the same moment do so one after the other.
        form = self._forms.by_id.get(request.query.get("paymentId", ""))
        if request.method == "POST":
            response, why = self._press(form, method, typed), ""
        else:
            host = host_of(request.headers.get("Referer", ""))
            response, why = self._open(form, method, host)
        # Without its query: whoever has that has the payment.
        self._books.log.write("page", f"{request.method} {request.path}{why}", status=response.status)
        return response

    def _open(self, form: Form | None, method: Method, host: str | None) -> tuple[web.Response, str]:
        """Return the page of a link, and what the log adds to a status that may well be 200."""
        settings = self._books.settings
        if host is None:
            return _denied("no referrer"), ", denied: no referrer came"
        if settings.registered_domains is not None and host not in settings.registered_domains:
            if form is None or not settings.domain_problem_redirects:
                return _denied("not registered", ascii(host)), ", denied: another domain"
            parameters = {"msg": say("foreign domain", form.language, host)}
            return _redirect(with_query(form.response_url, parameters)), ", denied: another domain"
        if form is None:
            return _notice("form unknown", status=404), ""
        if form.how is None:
            self._forms.opened(form.payment_id, method)
        return self._closed(form, method) or _form_page(form, method), ""

    def _press(self, form: Form | None, method: Method, text: str) -> web.Response:
        if form is None or method not in form.deadlines:
            return _denied("no referrer")  # whoever was not let in has no buttons
        if (closed := self._closed(form, method)) is not None:
            return closed
        try:
            fields = parse_qs(text, max_num_fields=20)
        except ValueError:
            fields = {"outcome": [""]}
        typed = {name: fields[name][-1].strip() for name in _ASKED if name in fields}
        match fields.get("outcome", ["pay"])[-1]:
            case "cancel":
                address = self._forms.cancel(form, method)
                return _notice("form cancelled", form) if address is None else _redirect(address)
            case "reject":
                return _redirect(self._forms.pay(form, method, declined=True))
            case "pay" if all(typed.get(name) for name in _missing(form)):
                form.texts = {**typed, **form.texts}
                return _redirect(self._forms.pay(form, method))
            case "pay":
                return _form_page(form, method, typed)
            case _:
                return _notice("form unreadable", form, 400)

    def _closed(self, form: Form, method: Method) -> web.Response | None:
        if form.how is not None:
            return _notice(f"form {form.how}", form)
        return _notice("form expired", form, 410) if self._forms.is_expired(form, method) else None


def _missing(form: Form) -> list[str]:
    """Return the names of the inputs for data that was not given."""
    return [name for name in _ASKED if name not in form.texts]


def _form_page(form: Form, method: Method, typed: Mapping[str, str] | None = None) -> web.Response:
    """Return the form; `typed` is what the customer has typed so far, if something is missing."""
    language = form.language
    reference = form.texts.get("reference")
    rows = [("store", form.store_id), ("reference", reference), ("number", form.client_transaction_id)]
    lines = [
        '<form method="post">',
        f'<button class="x" name="outcome" value="cancel" aria-label="{say("close", language)}">&#x2715;</button>',
        f"</form>\n{_money(form)}\n<dl>",
        *(f"<dt>{say(name, language)}</dt><dd>{escape(value)}</dd>" for name, value in rows if value),
        "</dl>",
        "" if typed is None else f'<p class="missing" role="alert">{say("missing", language)}</p>',
        '<form method="post">',
        *(
            f'<label>{say(name, language)}<input name="{name}" value="{escape((typed or {}).get(name, ""))}" '
            f'{_ASKED[name]} maxlength="100" required></label>'
            for name in _missing(form)
        ),
        f'<button class="pay primary" name="outcome" value="pay">{say("pay", language)}</button>',
        f'<button name="outcome" value="reject" formnovalidate>{say("decline", language)}</button>',
        "</form>",
    ]
    return _page(language, say(f"{method} form", language), "\n".join(lines), 200 if typed is None else 400)


def _notice(text: str, form: Form | None = None, status: int = 200) -> web.Response:
    """Return a page that says one thing, in the form's language."""
    language: Language = "es" if form is None else form.language
    return _page(language, say(text, language), "" if form is None else _money(form), status)


def _denied(text: str, *values: str) -> web.Response:
    """Return the access-denied page (§4, §7.7) in both languages, for the merchant's developer above all."""
    languages: tuple[Language, ...] = ("es", "en")
    content = "\n".join(
        f'<p lang="{language}">{escape(say(text, language, *values))} {say("referrer policy", language)}</p>'
        for language in languages
    )
    return _page("es", " / ".join(say("denied", language) for language in languages), content)


def _page(language: Language, title: str, content: str, status: int = 200) -> web.Response:
    parts = {"language": language, "title": title, "not_real": say("not real", language), "content": content}
    text = _PAGE.substitute(parts)
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _redirect(address: str) -> web.Response:
    return web.Response(status=303, headers={**_HEADERS, "Location": address})


def _money(form: Form) -> str:
    units, cents = divmod(abs(form.amount), 100)
    return f'<p class="amount">{escape(form.currency)} {"-" * (form.amount < 0)}{units}.{cents:02}</p>'
