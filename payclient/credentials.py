"""Whose silence it is: one address serves many accounts, and only the token decides what is found."""

from __future__ import annotations

import logging
from hashlib import blake2b

from payclient.auth import SIGNED_WITH
from payclient.lifecycle import Record

__all__: list[str] = []

logger = logging.getLogger("payclient.credentials")


class Credentials:
    """Under which credentials an attempt is sent, and whose "not found" speaks of it.

    A digest keyed by the ledger's own key stands for a token. Which other token finds what one has sent is learnt by
    each process anew, and only from a sale whose transaction id is known: from the answer to our own POST, or from a
    query under credentials that may judge the sale.
    """

    def __init__(self, digest_key: bytes) -> None:
        self._digest_key = digest_key
        #: The last token's digest and its keyed one.
        self._last = (b"", b"")
        #: Pairs of credentials: what the second has sent was found under the first.
        self._finds: set[tuple[bytes, bytes]] = set()
        self._warned = False

    def current(self) -> bytes:
        """Return the keyed digest of the token that this task's last request was signed with; empty for none."""
        plain = SIGNED_WITH.get()
        if not plain:
            return b""
        last, keyed = self._last
        if plain != last:
            keyed = blake2b(b"credentials\0" + plain, digest_size=16, key=self._digest_key).digest()
            self._last = (plain, keyed)
        return keyed

    def found(self, record: Record) -> None:
        """Learn that the token in use finds what this attempt's token has sent."""
        if record.credentials and (current := self.current()) != record.credentials:
            self._finds.add((current, record.credentials))

    def may_deny(self, record: Record) -> bool:
        """Return whether an answer by client transaction id under the token in use speaks of this attempt.

        Warn once where it does not: neither "not found" nor a transaction that is found says anything then.
        """
        current = self.current()
        if current and (current == record.credentials or (current, record.credentials) in self._finds):
            return True
        if not self._warned:
            self._warned = True
            logger.warning(
                '%s: sent under another token than the one in use, whose "not found" proves nothing; '
                "use one ledger for each account",
                record.client_transaction_id,
            )
        return False
