"""The page on which a customer waits while the request is on the phone (§8: 5 minutes): no HTTP request waits with it.

It asks the app's own JSON route every 2 seconds, and is loaded anew when the waiting is over; without JavaScript it is
loaded anew every 4 seconds.
"""

from __future__ import annotations

from html import escape

from payclient.lifecycle import State
from payclient.pending import PendingSale
from payclient.web.pages import Language, Page, check_address, check_language, make_page

__all__ = ["is_waiting", "sale_status", "waiting_page"]

_TEXTS = {
    "es": {
        "sale": "Apruebe el pago en su teléfono",
        "sale_how": "Le enviamos una solicitud a la app. Ábrala, elija cómo pagar y confirme.",
        "form": "Confirmando su pago…",
        "form_how": "Estamos preguntando cómo terminó su pago. Tarda unos segundos.",
        "left": "Tiempo restante",
        "stay": "Esta página se actualiza sola. No pague otra vez.",
    },
    "en": {
        "sale": "Approve the payment on your phone",
        "sale_how": "We sent a request to the app. Open it, choose how to pay, and confirm.",
        "form": "Confirming your payment…",
        "form_how": "We are asking how your payment ended. It takes a few seconds.",
        "left": "Time left",
        "stay": "This page updates by itself. Do not pay again.",
    },
}

_DRAWN = {
    "sale": '<rect x="17" y="11" width="14" height="26" rx="3"/><path d="M22 33h4"/>',
    "form": '<rect x="12" y="16" width="24" height="16" rx="3"/><path d="M12 21h24M17 27h4"/>',
}

#: On the phone on which the app is, the page sleeps meanwhile: it asks as soon as it is seen again.
_SCRIPT = """
(function () {
  var box = document.getElementById("wait"), clock = document.getElementById("clock");
  var end = Date.now() + 1000 * Number(box.dataset.seconds), timer = 0, asking = false;
  function show() {
    var left = Math.max(0, Math.ceil((end - Date.now()) / 1000));
    if (clock) { clock.textContent = Math.floor(left / 60) + ":" + String(left % 60).padStart(2, "0"); }
  }
  function later(seconds) {
    clearTimeout(timer);
    timer = setTimeout(ask, 1000 * seconds);
  }
  function ask() {
    if (asking) { return; }
    asking = true;
    fetch(box.dataset.status, {cache: "no-store", headers: {Accept: "application/json"}})
      .then(function (answer) { if (!answer.ok) { throw new Error(); } return answer.json(); })
      .then(function (sale) {
        asking = false;
        if (sale.waiting === false) { location.reload(); return; }
        end = Date.now() + 1000 * sale.remaining;
        later(2);
      })
      .catch(function () { asking = false; later(5); });
  }
  show();
  setInterval(show, 500);
  document.addEventListener("visibilitychange", function () { if (!document.hidden) { ask(); } });
  later(2);
})();
"""


def is_waiting(sale: PendingSale) -> bool:
    """Whether its customer can still act: not decided, and the time not over (§8).

    Afterwards `outcome.paid` is what to tell them; None is "we do not know yet", never "not paid".
    """
    return not sale.state.decided and sale.state is not State.EXPIRED and (
        sale.state is State.SENDING or sale.remaining > 0
    )  # fmt: skip


def sale_status(sale: PendingSale) -> dict[str, object]:
    """What the app's JSON route answers to the page: `waiting`, `paid`, `state` and `remaining` seconds."""
    return {
        "waiting": is_waiting(sale),
        "paid": sale.outcome.paid,
        "state": str(sale.state),
        "remaining": round(sale.remaining, 1),
    }


def waiting_page(
    sale: PendingSale,
    status_url: str,
    language: Language = "es",
    *,
    amount: str = "",
) -> Page:
    """A page that says "approve it on your phone", with the time left, until the outcome.

    Answer it while `is_waiting(sale)`, on the route that answers the outcome afterwards. `status_url` is the app's
    route that answers `sale_status(sale)` as JSON, on the same origin. For who returns from a payment form it says that
    the payment is being confirmed. `amount` is a text, shown as it is. Raises `ConfigurationError`.
    """
    check_language(language)
    texts = _TEXTS[language]
    seconds = f"{sale.remaining:.0f}"
    minutes, rest = divmod(int(seconds), 60)
    left = f'<p class="left">{texts["left"]} <b id="clock" role="timer">{minutes}:{rest:02}</b></p>'
    return make_page(
        language=language,
        title=texts[sale.kind],
        head='<noscript><meta http-equiv="refresh" content="4"></noscript>\n',
        content=f"""
<svg viewBox="0 0 48 48" aria-hidden="true">{_DRAWN[sale.kind]}<circle class="ring" cx="24" cy="24" r="21"/>\
<path class="turning" d="M24 3a21 21 0 0 1 21 21"/></svg>
<h1 id="wait" role="status" data-status="{escape(check_address(status_url, "status_url"))}" \
data-seconds="{seconds}">{texts[sale.kind]}</h1>
{f'<p class="amount">{escape(amount)}</p>' if amount else ""}
<p>{texts[f"{sale.kind}_how"]}</p>
{left if sale.kind == "sale" else ""}
<p class="soft">{texts["stay"]}</p>""",
        script=_SCRIPT,
        sources="connect-src 'self'; ",
    )
