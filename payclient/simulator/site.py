"""The form pages over HTTP: who may open one (§4), and what its buttons do."""

from urllib.parse import parse_qs

from aiohttp import web

from .addresses import host_of, with_query
from .forms import METHODS, Form, Forms, Method
from .pages import ASKED, STYLE_HASH, denied_page, form_page, missing, notice_page
from .routing import any_case
from .settings import Settings

__all__ = ["WHY", "Site"]

#: Where an answer of this side says what was wrong.
WHY = web.ResponseKey("why", str)

_HEADERS = {
    "Cache-Control": "no-store",
    # No `form-action`: browsers would apply it to the redirect that follows a payment.
    "Content-Security-Policy": f"default-src 'none'; style-src '{STYLE_HASH}'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the page's own address is a secret
    "X-Content-Type-Options": "nosniff",
}


class Site:
    """The customer's side of the service; its requests are not the merchant's, so they are not in the counts."""

    def __init__(self, settings: Settings, forms: Forms) -> None:
        self._settings = settings
        self._forms = forms
        self._methods: dict[web.AbstractRoute, Method] = {}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        settings = self._settings
        paths: list[tuple[Method, str]] = [(method, settings.form_paths[method]) for method in METHODS]
        if settings.payment_code_link_field is not None:
            paths.append(("wallet", settings.payment_code_path))
        for method, path in paths:
            spelled = any_case(path) if settings.tolerant else path
            self._methods[router.add_get(spelled, self._get, allow_head=False)] = method  # a HEAD is no load
            self._methods[router.add_post(spelled, self._post)] = method

    async def _get(self, request: web.Request) -> web.Response:
        method = self._methods[request.match_info.route]
        host = host_of(request.headers.get("Referer", ""))
        domains = self._settings.registered_domains
        form = self._forms.forms.get(request.query.get("paymentId", ""))
        if host is None or (domains is not None and host not in domains):
            if host is None or form is None or not self._settings.domain_problem_redirects:
                return self._denied(host)
            address = with_query(form.response_url, {"msg": f"El dominio {host} no está autorizado"})
            return _because(_redirect(address), "denied: another domain")
        if form is None:
            return _html(notice_page("unknown"), 404)
        if form.how is None:
            self._forms.load(form, method)
        return self._closed(form, method) or _html(form_page(form, method))

    async def _post(self, request: web.Request) -> web.Response:
        method = self._methods[request.match_info.route]
        text = (await request.read()).decode("utf-8", "replace")
        # From here on nothing is awaited: two customers who press at the same moment do so one after the other.
        form = self._forms.forms.get(request.query.get("paymentId", ""))
        if form is None or method not in form.deadlines:
            return _html(denied_page(None), self._settings.denied_status)  # who was not let in has no buttons
        if (closed := self._closed(form, method)) is not None:
            return closed
        try:
            fields = parse_qs(text, max_num_fields=20)
        except ValueError:
            return _html(notice_page("unreadable", form=form), 400)
        typed = {name: fields[name][-1].strip() for name in ASKED if name in fields}
        match fields.get("outcome", ["pay"])[-1]:
            case "cancel":
                address = self._forms.cancel(form, method)
                return _html(notice_page("cancelled", form=form)) if address is None else _redirect(address)
            case "reject":
                return _redirect(self._forms.pay(form, method, declined=True))
            case "pay":
                if not all(typed.get(name) for name in missing(form)):
                    return _html(form_page(form, method, typed=typed), 400)
                for name in missing(form):
                    setattr(form, ASKED[name], typed[name])
                return _redirect(self._forms.pay(form, method))
            case _:
                return _html(notice_page("unreadable", form=form), 400)

    def _closed(self, form: Form, method: Method) -> web.Response | None:
        if form.how is not None:
            return _html(notice_page(form.how, form=form))
        if self._forms.is_expired(form, method):
            return _html(notice_page("expired", form=form), 410)
        return None

    def _denied(self, host: str | None) -> web.Response:
        why = "denied: no referrer came" if host is None else "denied: another domain"
        return _because(_html(denied_page(host), self._settings.denied_status), why)


def _because(response: web.Response, why: str) -> web.Response:
    """With what the log is to say beside a status that may well be 200."""
    response[WHY] = why
    return response


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _redirect(address: str) -> web.Response:
    return web.Response(status=303, headers={**_HEADERS, "Location": address})
