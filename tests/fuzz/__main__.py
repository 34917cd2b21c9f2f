"""`python -m fuzz --runs N`: hostile bytes by atheris, which learns from the branches that they take."""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[1] / "samples"

#: Words that no chance would find.
WORDS = (
    "transactionId", "errorCode", "errors", "message", "errorDescriptions", "paymentId", "payWithCard",
    "https://pay.example/", "http://127.0.0.1/", "transactionStatus", "Approved", "Pending", "Canceled",
    "clientTransactionId", "amount", "currency", "id", "clientTransactionID", "2061", "800", "20",
    "9223372036854775807", "9223372036854775808", "null", "true", "1e400", "NaN",
)  # fmt: skip

SEEDS = (
    b'{"transactionId":12}',
    b'{"transactionId":12,"errorCode":null}',
    b'{"message":"m","errorCode":22,"errors":[{"message":"n","errorCode":2061}]}',
    b'{"errorCode":800,"errors":[{"message":"Amount","errorDescriptions":["d"]}]}',
    b'{"paymentId":"p","payWithCard":"https://pay.example/c"}',
    b'[{"transactionId":1,"transactionStatus":"Approved","amount":1,"currency":"USD"}]',
    b'{"errorCode":20,"message":"no"}',
    b'{"id":7,"clientTransactionID":"order-1"}',
    b"id=7&clientTransactionID=order-1",
)


def main() -> int:
    """Fuzz until so many runs are done, or something does not hold; then the input is shown and kept."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print("fuzz: atheris is missing: pip install atheris (for CPython 3.11 on Linux)", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["payclient"]):
        from fuzz import checks

    folder = Path(tempfile.mkdtemp(prefix="payclient-fuzz-"))
    corpus = folder / "corpus"
    corpus.mkdir()
    samples = [path.read_bytes() for path in sorted(SAMPLES.rglob("*")) if path.is_file()]
    for number, seed in enumerate([*SEEDS, *samples]):
        # The first byte chooses the HTTP status.
        for status in (0, 4, 12):
            (corpus / f"{number}-{status}").write_bytes(bytes([status]) + seed)
    (folder / "words").write_text("".join(f'"{word}"\n' for word in WORDS))

    def one(data: bytes) -> None:
        if data:
            checks.check_all(checks.STATUSES[data[0] % len(checks.STATUSES)], data[1:])

    atheris.Setup(
        [
            sys.argv[0], f"-runs={options.runs}", f"-seed={options.seed}", "-max_len=4096", "-timeout=10",
            f"-dict={folder / 'words'}", f"-artifact_prefix={folder}/", "-print_final_stats=1", str(corpus),
        ],
        one,
    )  # fmt: skip
    print(f"what it finds is kept in {folder}", file=sys.stderr, flush=True)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
