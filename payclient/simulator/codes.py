"""The service's error codes and what it says with each (§7); only 22, 800 and 2061 are the document's."""

from typing import Final

from .rules import Refusal

__all__ = ["refusal"]

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


def refusal(code: int, *inner: int) -> Refusal:
    """The error object with this general code and one entry for each specific one (§7)."""
    entries = tuple({"message": _MESSAGES.get(one, _UNPUBLISHED), "errorCode": one} for one in inner)
    return Refusal(code, _MESSAGES.get(code, _UNPUBLISHED), entries)
