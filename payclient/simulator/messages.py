"""Texts for people: one table of two languages, and the error object (§7) that is made from it."""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final, Literal, get_args

import orjson
from attrs import field, frozen

Language = Literal["es", "en"]

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
MESSAGES: Final[Mapping[str, Sequence[str]]] = orjson.loads(
    files(__package__).joinpath("messages.json").read_bytes()
)


def say(key: int | str, language: Language, *values: object) -> str:
    """Return a text of the table; all unlisted errorCodes have one text."""
    return MESSAGES.get(str(key), MESSAGES["other code"])[language == "en"].format(*values)


def preferred_language(accept_language: str) -> Language:
    """Return the one of English and Spanish that the header names first; Spanish without either."""
    first = re.search(r"\b(?:es|en)\b", accept_language.lower())
    return "en" if first is not None and first[0] == "en" else "es"


@frozen
class FieldFault:
    """One failing field, the key of the message about it, and the values in that message."""

    field: str
    message: str
    values: tuple[object, ...] = ()


@frozen
class RefusalError(Exception):
    """The service's refusal: the error object (§7), or without a `code` a message alone."""

    code: int | None = None
    #: Codes of specific errors.
    inner: tuple[int, ...] = field(default=(), kw_only=True)
    #: The failing fields of code 800.
    faults: tuple[FieldFault, ...] = field(default=(), kw_only=True)
    #: The key of the message, unless that is the code, and the values in the message.
    message: str = field(default="", kw_only=True)
    values: tuple[object, ...] = field(default=(), kw_only=True)

    @property
    def key(self) -> int | str:
        return self.message or self.code or ""

    def as_json(self, language: Language) -> dict[str, object]:
        """Return the answer's body."""
        answer: dict[str, object] = {"message": say(self.key, language, *self.values)}
        if self.code is None:
            return answer
        texts: dict[str, list[str]] = {}  # one entry per failing field (§7.5)
        for fault in self.faults:
            texts.setdefault(fault.field, []).append(say(fault.message, language, fault.field, *fault.values))
        errors: list[dict[str, object]] = [
            *({"message": say(one, language), "errorCode": one} for one in self.inner),
            *({"message": name, "errorCode": 0, "errorDescriptions": text} for name, text in texts.items()),
        ]
        return {**answer, "errorCode": self.code, **({"errors": errors} if errors else {})}
