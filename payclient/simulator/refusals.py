"""The service's error object (§7): its codes, and what it says with each; only 22, 800 and 2061 are the document's."""

from collections.abc import Iterable
from typing import Final

from attrs import frozen

__all__ = ["FieldFault", "Refusal", "refusal", "validation_refusal"]

#: Texts of 20, 22, 25, 2029 and 2061 are the service's own; those of the others are not published.
_MESSAGES: Final[dict[int, str]] = {
    20: "La transacción no existe, verifique que el identificador enviado sea correcto.",
    22: "La transacción no pudo ser creada por favor inténtelo de nuevo",
    23: "Ya existe una transacción con este clientTransactionId",
    25: "La transacción no se pudo cancelar. Puede que ya se encuentre aprobada o cancelada.",
    100: "La tienda no existe",
    101: "El terminal no existe",
    102: "El monto es menor que el permitido",
    103: "El monto es mayor que el permitido",
    120: "El número de teléfono no está registrado",
    500: "Error del servicio",
    501: "Servicio no disponible",
    802: "El token no es válido",
    2029: "Transacción no existe",
    2061: "El cliente tiene transacciones pendientes con su local",
}
_UNPUBLISHED: Final = "No se pudo procesar la solicitud"


@frozen
class FieldFault:
    """One failing field and what is wrong with it."""

    field: str
    description: str


@frozen
class Refusal:
    """The service's error object (§7)."""

    error_code: int
    message: str
    errors: tuple[dict[str, object], ...] = ()

    def as_json(self, *, without_empty: bool = False) -> dict[str, object]:
        """The object of §7; `without_empty` leaves `errors` out where there are none."""
        error: dict[str, object] = {"message": self.message, "errorCode": self.error_code}
        return error if without_empty and not self.errors else {**error, "errors": self.errors}


def validation_refusal(faults: Iterable[FieldFault]) -> Refusal:
    """Code 800 with one entry per failing field (§7.4, §7.5).

    The document shows it for Button/Prepare; a Sale that breaks the same rules (§2.1) is answered alike.
    """
    descriptions: dict[str, list[str]] = {}
    for fault in faults:
        descriptions.setdefault(fault.field, []).append(fault.description)
    entries = tuple(
        {"message": field, "errorCode": 0, "errorDescriptions": texts}
        for field, texts in descriptions.items()
    )
    return Refusal(800, "Las validaciones han fallado", entries)


def refusal(code: int, *inner: int) -> Refusal:
    """The error object with this general code and one entry for each specific one (§7)."""
    entries = tuple({"message": _MESSAGES.get(one, _UNPUBLISHED), "errorCode": one} for one in inner)
    return Refusal(code, _MESSAGES.get(code, _UNPUBLISHED), entries)
