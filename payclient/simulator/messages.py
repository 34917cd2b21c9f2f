"""Texts for people: one table of two languages, and the error object (§7) that is made from it."""

import re
from collections.abc import Mapping
from typing import Final, Literal, get_args

from attrs import frozen

Language = Literal["es", "en"]

_ACCEPTED: Final = re.compile(r"(?:^|,)\s*(es|en)(?:-\w+)*\s*(?:;\s*q=([01](?:\.\d*)?))?\s*(?=,|$)")

#: Why a bank declines, by the vendor's list.
Reason = Literal[
    "insufficient_funds", "wrong_date", "wrong_cvv", "rejected_card", "invalid_card", "unauthorized_deferred",
    "amount_exceeded", "fraud", "lost_card", "stolen_card",
]  # fmt: skip
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
#: The `messageCode` of a cancelled transaction, by its reason, its reversal or its `how`. Recorded are 16, 6 and 34;
#: the others are not published.
MESSAGE_CODES: Final[Mapping[str, int]] = {
    **dict(zip(REASONS, (16, 54, 82, 6, 14, 57, 61, 59, 41, 43), strict=True)),
    "merchant": 34, "unconfirmed": 34, "rejected": 6, "declined": 6, "expired": 21, "cancelled": 22,
}  # fmt: skip

#: In Spanish and in English. A number is an errorCode. Spanish texts of 20, 22, 23, 25, 100, 107, 120, 2029, 2061,
#: "unauthorized", "foreign domain" and "insufficient_funds" and the English one of 20 are the service's own; the others
#: are not published.
MESSAGES: Final[Mapping[int | str, tuple[str, str]]] = {
    20: ("La transacción no existe, verifique que el identificador enviado sea correcto.",
         "Transaction does not exist, verify that the submitted identifier is correct."),
    22: ("La transacción no pudo ser creada por favor inténtelo de nuevo",
         "The transaction could not be created, please try again"),
    23: ("Ya existe una transacción con el ClientTransactionId especificado",
         "A transaction with this ClientTransactionId already exists"),
    25: ("La transacción no se pudo cancelar. Puede que ya se encuentre aprobada o cancelada.",
         "The transaction could not be cancelled. It may be approved or cancelled already."),
    100: ("La tienda asociada no existe. Verifique su store id o comuníquese con Payphone",
          "The store does not exist, check your store id"),
    107: ("El monto a cobrar debe ser mayor o igual a {0}", "The amount to charge must be {0} or more"),
    120: ("Lo sentimos, este número no está registrado en Payphone", "Sorry, this number is not registered"),
    500: ("Error del servicio", "Service error"),
    501: ("Servicio no disponible", "Service not available"),
    800: ("Las validaciones han fallado", "The validations have failed"),
    802: ("El token no es válido", "The token is not valid"),
    2029: ("Transacción no existe", "Transaction does not exist"),
    2061: ("El cliente tiene transacciones pendientes con su local",
           "The customer has pending transactions with your store"),
    "other code": ("No se pudo procesar la solicitud", "The request could not be processed"),
    "unauthorized": ("Su aplicación no esta autorizada para acceder a este recurso",
                     "Your application is not authorized to use this resource"),
    "throttled": ("Demasiadas solicitudes", "Too many requests"),
    # A field that fails (§7.5).
    "required": ("El campo {0} es obligatorio", "The field {0} is required"),
    "type": ("El campo {0} debe ser de tipo {1}", "The field {0} must be of type {1}"),
    "url": ("El campo {0} debe ser una URL", "The field {0} must be a URL"),
    "language": ("El campo {0} debe ser en o es", "The field {0} must be en or es"),
    "phone": ("El campo {0} debe ser +, código de país y número", "The field {0} must be +, country code and number"),
    "range": ("El campo {0} debe estar entre {1} y {2}", "The field {0} must be from {1} to {2}"),
    "length": ("El campo {0} debe tener como máximo {2} caracteres", "The field {0} must have at most {2} characters"),
    "no component": ("El monto necesita al menos un componente", "The amount needs at least one component"),
    "sum": ("El monto no es igual a la suma de sus componentes", "The amount is not the sum of its components"),
    "mixed": ("Un cobro mixto necesita el campo tax", "A mixed charge needs the field tax"),
    "body": ("El cuerpo debe ser un objeto JSON", "The body must be a JSON object"),
    "content type": ("Debe ser application/json", "Must be application/json"),
    "simulated": ("Rechazo simulado", "Simulated refusal"),
    # Why a transaction is cancelled: its `how`, or its `reversal`.
    "rejected": ("La transacción fue rechazada por el cliente", "The transaction was rejected by the customer"),
    "declined": ("La transacción fue rechazada por el banco", "The transaction was rejected by the bank"),
    "expired": ("La transacción ha expirado", "The transaction has expired"),
    "cancelled": ("La transacción fue cancelada por el comercio", "The transaction was cancelled by the merchant"),
    "merchant": ("Cancelada", "Cancelled"),
    "unconfirmed": ("Cancelada", "Cancelled"),
    "insufficient_funds": ("Fondos Insuficientes", "Insufficient funds"),
    "wrong_date": ("Fecha de expiración incorrecta", "Wrong expiry date"),
    "wrong_cvv": ("CVV incorrecto", "Wrong CVV"),
    "rejected_card": ("Tarjeta rechazada", "Card rejected"),
    "invalid_card": ("Tarjeta inválida", "Invalid card"),
    "unauthorized_deferred": ("Diferido no autorizado", "Deferred payment not authorized"),
    "amount_exceeded": ("Monto excedido", "Amount exceeded"),
    "fraud": ("Posible fraude", "Suspected fraud"),
    "lost_card": ("Tarjeta perdida", "Lost card"),
    "stolen_card": ("Tarjeta robada", "Stolen card"),
    "foreign domain": (
        "Su dominio no está autorizado por la aplicación. Ingrese a la consola de developer para configurar.",
        "The application does not authorize your domain. Configure it in the developer console."),
    # The pages of the forms.
    "not real": ("Servicio simulado: no se mueve dinero real. No escriba datos reales.",
                 "Simulated service: no real money moves. Do not enter real data."),
    "wallet form": ("Pago con la app", "Pay with the app"),
    "card form": ("Pago con tarjeta", "Pay by card"),
    "store": ("Comercio", "Merchant"),
    "reference": ("Motivo", "Reference"),
    "number": ("Transacción", "Transaction"),
    "phoneNumber": ("Teléfono, con + y código de país", "Phone, with + and country code"),
    "email": ("Correo electrónico", "E-mail"),
    "documentId": ("Número de identificación", "Identification number"),
    "missing": ("Complete los datos que faltan.", "Please fill in what is missing."),
    "pay": ("Pagar", "Pay"),
    "decline": ("Simular un rechazo", "Simulate a decline"),
    "reason": ("Motivo del rechazo", "Reason of the decline"),
    "close": ("Cancelar el pago", "Cancel the payment"),
    "form paid": ("Este pago ya fue realizado.", "This payment was already made."),
    "form declined": ("Este pago ya fue rechazado.", "This payment was already declined."),
    "form cancelled": ("Este pago fue cancelado.", "This payment was cancelled."),
    "form expired": ("Este formulario ha expirado. Se debe preparar uno nuevo.",
                     "This form has expired. A new one must be prepared."),
    "form unknown": ("Este pago no existe.", "There is no such payment."),
    "form unreadable": ("No se entiende lo que se envió.", "What was sent cannot be read."),
    "denied": ("No autorizado", "Not authorized"),
    "no referrer": ("La redirección no dijo de qué sitio viene (cabecera Referer).",
                    "The redirect did not say from which site it comes (Referer header)."),
    "not registered": ("El dominio {0} no está registrado.", "The domain {0} is not registered."),
    "referrer policy": (
        "El formulario solo se abre desde el dominio registrado, con una Referrer-Policy como origin.",
        "The form opens only from the registered domain, with a Referrer-Policy such as origin."),
}  # fmt: skip


def say(key: int | str, language: Language, *values: object) -> str:
    """Return a text of the table; all unlisted errorCodes have one text."""
    return MESSAGES.get(key, MESSAGES["other code"])[language == "en"].format(*values)


def preferred_language(accept_language: str) -> Language:
    """Return the one of English and Spanish with the larger weight, else the first; Spanish without either."""
    found = _ACCEPTED.findall(accept_language.lower())
    best, _ = max(found, key=lambda one: float(one[1] or 1), default=("es", ""))
    return "en" if best == "en" else "es"


@frozen
class FieldFault:
    """One failing field, the message of the table that says what is wrong with it, and that message's values."""

    field: str
    message: str
    values: tuple[object, ...] = ()


@frozen
class RefusalError(Exception):
    """The service's refusal: the error object (§7), or without a `code` a message alone."""

    code: int | None
    message: int | str
    #: Codes of specific errors.
    inner: tuple[int, ...] = ()
    faults: tuple[FieldFault, ...] = ()
    #: What the message names.
    values: tuple[object, ...] = ()

    @classmethod
    def of(cls, code: int, *inner: int) -> "RefusalError":
        """Return the error object with this general code and one entry for each specific one (§7)."""
        return cls(code, code, inner)

    def as_json(self, language: Language, *, empty_errors: bool = True) -> dict[str, object]:
        """Return the answer's body; `empty_errors` says whether an empty `errors` is in it."""
        answer: dict[str, object] = {"message": say(self.message, language, *self.values)}
        if self.code is None:
            return answer
        errors: list[dict[str, object]] = [
            {"message": say(one, language), "errorCode": one} for one in self.inner
        ]
        texts: dict[str, list[str]] = {}
        for fault in self.faults:
            texts.setdefault(fault.field, []).append(say(fault.message, language, fault.field, *fault.values))
        errors += [
            {"message": name, "errorCode": 0, "errorDescriptions": text} for name, text in texts.items()
        ]
        return {**answer, "errorCode": self.code, **({"errors": errors} if errors or empty_errors else {})}


def invalid(*faults: FieldFault) -> RefusalError:
    """Return code 800 with one entry per failing field (§7.4, §7.5); a Sale is answered like a Button/Prepare."""
    return RefusalError(800, 800, faults=faults)
