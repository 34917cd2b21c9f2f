"""The service's messages in the language that a client asks for; Spanish, unless it asks for English."""

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["english", "wants_english"]

#: English by the Spanish text; groups stand for what differs from case to case.
_ENGLISH: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(spanish), text)
    for spanish, text in (
        (r"Las validaciones han fallado", "The validations have failed"),
        (r"El campo (\S+) es obligatorio", r"The field \1 is required"),
        (r"El campo (\S+) debe ser una cadena", r"The field \1 must be a string"),
        (r"El campo (\S+) debe ser un número entero", r"The field \1 must be an integer"),
        (r"El campo (\S+) debe ser un booleano", r"The field \1 must be a boolean"),
        (r"El campo (\S+) debe ser un objeto", r"The field \1 must be an object"),
        (r"El campo (\S+) debe ser una lista", r"The field \1 must be a list"),
        (r"El campo (\S+) debe ser una URL", r"The field \1 must be a URL"),
        (r"El campo (\S+) debe ser en o es", r"The field \1 must be en or es"),
        (r"El campo (\S+) debe ser \+, código.*", r"The field \1 must be +, country code and number"),
        (r"El campo (\S+) debe estar entre (\S+) y (\S+)", r"The field \1 must be from \2 to \3"),
        (
            r"El campo (\S+) debe tener como máximo (\S+) caracteres",
            r"The field \1 must have at most \2 characters",
        ),
        (r"El monto necesita al menos un componente", "The amount needs at least one component"),
        (r"El monto no es igual a la suma de sus componentes", "The amount is not the sum of its components"),
        (r"Un cobro mixto necesita el campo tax", "A mixed charge needs the field tax"),
        (r"El cuerpo no es JSON", "The body is no JSON"),
        (r"El cuerpo no es un formulario", "The body is no form"),
        (r"El cuerpo debe ser un objeto", "The body must be an object"),
        (r"Debe ser application/json", "Must be application/json"),
        (r"La transacción no existe, verifique.*", "The transaction does not exist, check the identifier."),
        (r"La transacción no pudo ser creada.*", "The transaction could not be created, please try again"),
        (r"Ya existe una transacción con.*", "A transaction with this clientTransactionId already exists"),
        (
            r"La transacción no se pudo cancelar.*",
            "The transaction could not be cancelled, it may be decided.",
        ),
        (r"La tienda no existe", "The store does not exist"),
        (r"El terminal no existe", "The terminal does not exist"),
        (r"El monto es menor que el permitido", "The amount is below the limit"),
        (r"El monto es mayor que el permitido", "The amount is above the limit"),
        (r"El número de teléfono no está registrado", "The phone number is not registered"),
        (r"Error del servicio", "Service error"),
        (r"Servicio no disponible", "Service not available"),
        (r"El token no es válido", "The token is not valid"),
        (r"Transacción no existe", "Transaction does not exist"),
        (
            r"El cliente tiene transacciones pendientes.*",
            "The customer has pending transactions with your store",
        ),
        (r"No se pudo procesar la solicitud", "The request could not be processed"),
        (r"Su aplicación no esta autorizada.*", "Your application is not authorized to use this resource"),
        (r"Demasiadas consultas", "Too many queries"),
        (r"La transacción fue rechazada por el cliente", "The transaction was rejected by the customer"),
        (r"La transacción fue rechazada por el banco", "The transaction was rejected by the bank"),
        (r"La transacción ha expirado", "The transaction has expired"),
        (r"La transacción fue cancelada por el comercio", "The transaction was cancelled by the merchant"),
        (r"La transacción fue reversada por el comercio", "The transaction was reversed by the merchant"),
        (r"La transacción fue reversada porque no.*", "The transaction was reversed, as nobody confirmed it"),
    )
)
_SAYING: Final = {"message", "errorDescriptions"}


def wants_english(accept_language: str) -> bool:
    """Whether the header puts English before Spanish."""
    best, language = 0.0, "es"
    for part in accept_language.lower().split(","):
        name, _, weight = part.partition(";")
        try:
            quality = float(weight.strip().removeprefix("q=") or 1)
        except ValueError:
            continue
        name = name.strip().partition("-")[0]
        if name in {"en", "es"} and quality > best:
            best, language = quality, name
    return language == "en"


def english(answer: object) -> object:
    """The answer with what it says to people in English; names of fields and all data stay."""
    if isinstance(answer, Mapping):
        return {
            name: _translated(value) if name in _SAYING else english(value) for name, value in answer.items()
        }
    return [english(one) for one in answer] if isinstance(answer, (list, tuple)) else answer


def _translated(value: object) -> object:
    if isinstance(value, list):
        return [_translated(one) for one in value]
    if isinstance(value, str):
        for spanish, text in _ENGLISH:
            if (found := spanish.fullmatch(value)) is not None:
                return found.expand(text)
    return value
