"""What an operator reads: in two languages by one table, with what is to do after a run."""

import ast
import re
import string
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import payclient
from cli_runs import Charge, Said, Service, rows_of, simulated, wait_until, write_csv
from payclient.cli import main
from payclient.cli.run import Reach
from payclient.cli.texts import choose_language, counted, reason, table, text
from payclient.session import Exchange
from payclient.validation import CENTS

pytestmark = pytest.mark.usefixtures("clean_environment")


ROOT = Path(payclient.__file__).parent


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    choose_language("en")
    yield
    choose_language("en")


#: The sources of the package, and of the command line with its templates.
CODE, CLI_CODE = (
    "".join(path.read_text(encoding="utf-8") for path in files)
    for files in (
        [*ROOT.rglob("*.py"), *ROOT.glob("cli/*.j2"), ROOT / "cli/commands.toml"],
        [path for path in (ROOT / "cli").iterdir() if path.suffix in (".py", ".j2")],
    )
)


def fields(pattern: str) -> list[str]:
    return sorted(f"{n}:{spec}" for _, n, spec, _ in string.Formatter().parse(pattern) if n is not None)


def test_both_languages_say_the_same_of_everything() -> None:
    """Each text has two forms with the same values in them, and neither is empty."""
    assert all(table()["sentence"].values())
    for section in ("reason", "foreign"):
        for english, spanish in table()[section].items():
            assert spanish.replace(":state", "").format(*fields(english)), (section, english)
    for section in table().keys() - {"reason", "foreign", "sentence"}:
        for name, forms in table()[section].items():
            assert len(forms) == 2, (section, name)
            assert all(forms), (section, name)
            if section == "noun":
                assert all(form.count("|") == 1 for form in forms), name
            else:
                assert fields(forms[0]) == fields(forms[1]), (section, name)


def test_no_reason_is_taken_for_another() -> None:
    """A pattern above may fit it, too: the phrases between the values were left in English then."""
    choose_language("es")
    for section in ("reason", "foreign"):
        for english, spanish in table()[section].items():
            said = spanish.replace(":state", "").format(*["x"] * english.count("{}"))
            assert reason(english.replace("{}", "x")) == said, (section, english)


def test_every_text_is_used_and_every_use_has_a_text() -> None:
    """By the names in the sources; a section whose names are made at runtime is looked up whole."""
    for section, name in re.findall(r"\btext\(\s*\"(\w+)\.(\w+)\"", CLI_CODE):
        assert name in table()[section], (section, name)
    for section in (
        "ask", "help", "file", "plan", "progress", "run", "todo", "page", "doctor", "reconcile", "ledger", "why",
        "form", "simulate", "demo",
    ):  # fmt: skip
        for name in table()[section]:
            assert re.search(rf"[\"'](\w+\.)?{name}[\"']", CLI_CODE), (section, name)


def test_every_reason_is_said_by_the_package() -> None:
    """Between what differs, the English form stands in the sources as it is."""
    code = re.sub(r"[\"']\s*\n\s*f?[\"']", "", CODE)
    for english in table()["reason"]:
        for words in re.split(r"\{\}|; |: |\. |\(|\)", english):
            assert words.strip() in code, (english, words)


#: Words of English sentences that no Spanish one has.
ENGLISH = re.compile(
    r"(?i)\b(?:the|of|is|are|was|and|or|to|it|be|by|with|which|that|not|nothing|must|give|needs?|what|where|from)\b"
)


def test_every_sentence_stands_in_the_code() -> None:
    """One that is changed in English is changed in Spanish."""
    code = " ".join(re.sub(r'"\s*\n\s*f?"', "", CODE).split())
    code += " ".join(re.findall(r"\w+_\w+", code)).replace("_", " ")
    for english in table()["sentence"]:
        assert english in code, english


def test_numbers_are_written_as_the_language_writes_them() -> None:
    """With their nouns, also of one."""
    assert (counted(1234, "row"), counted(1, "row")) == ("1,234 rows", "1 row")
    choose_language("es")
    assert (counted(1234, "row"), counted(1, "row")) == ("1.234 filas", "1 fila")
    assert text("ask.send", count=3000) == "¿Enviar 3.000 cobros?"
    assert (counted(1, "accepted"), counted(2, "accepted")) == ("1 aceptado", "2 aceptados")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("charge nothing-here.csv --dry-run", "nothing-here.csv: no se puede leer: no existe"),
        ("charge c.csv --dry-run --config no.toml", "no.toml: no se puede leer: no existe"),
        ("simulate --time-of-day 99", "la hora debe ser HH:MM, como 19:59"),
        ("ledger list", "dé --ledger, como sqlite:cobros.db"),
        ("ledger moved --base-url https://pay.example/?a=b --ledger sqlite:l.db", "base_url no debe tener ? ni #"),
        ("ledger list --ledger sqlite:nothing-here.db", "no hay ninguno en"),
        ("status --client-transaction-id a --profile payphone --base-url http://127.0.0.1:1",
         "no se alcanza el servicio: nadie escucha en esa dirección (ECONNREFUSED); no se envió nada"),
    ],
)  # fmt: skip
def test_an_error_in_spanish(arguments: str, said: str, capfd: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator meets on the first day."""
    monkeypatch.setenv("LANG", "es_EC.UTF-8")
    monkeypatch.setenv("PAYCLIENT_TOKEN", "token")
    assert main(arguments.split()) in (2, 4)
    assert said in capfd.readouterr().err


def words_of(node: ast.expr) -> str | None:
    """Return a literal text, with @ in the place of each value; None: it is another expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "@" for each in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def calls() -> Iterator[tuple[str, str, str]]:
    """Yield each call in the command line, and in what reads its files, with a literal text that is given to it."""
    for path in (*(ROOT / "cli").glob("*.py"), *(ROOT / "rows").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                for argument in node.args:
                    if words := words_of(argument):
                        yield f"{path.name}:{node.lineno}", ast.unparse(node.func), words


def test_nothing_is_printed_but_by_the_table() -> None:
    """A literal sentence would be English for everybody; what is no sentence may stand there."""
    printing = re.compile(r"(terminal|err|out|self)?(\(\))?\.?(say|plain|complain|print|print_result)")
    for place, function, words in calls():
        if printing.fullmatch(function.removeprefix("terminal.")) or printing.fullmatch(function):
            assert not re.search(
                "[a-z]{2}", re.sub(r"\[.*?\]|payclient:|(PAYCLIENT_TOKEN=any )?payclient .*", "", words)
            ), (place, words)


def test_what_the_command_line_refuses_is_said_in_spanish() -> None:
    """Each error that it raises, with whatever values."""
    choose_language("es")
    for place, function, words in calls():
        if function.endswith(("Error", "_fail", "unfit")) and "the report is closed" not in words:
            said = re.sub(r"--[\w-]+", "", reason(words))
            assert said != words or not ENGLISH.search(words), (place, words)
            assert not ENGLISH.search(said), (place, said)


@pytest.mark.parametrize(
    ("english", "spanish"),
    [
        ("must be at most 5 characters", "debe tener como máximo 5 caracteres"),
        ("has 3 digits after the decimal point; two is the most; must be given",
         "tiene 3 dígitos después del separador decimal (punto); dos es lo máximo; debe darse"),
        ("has 3 cells and the header 5: is it cut?", "tiene 3 celdas y el encabezado 5: ¿está cortada?"),
        ("must be the sum of its parts, and is 100 cents more than that",
         "debe ser la suma de sus partes, y es 100 centavos más que ella"),
        ("must be 0 to 5 cents", "debe ser de 0 a 5 centavos"),
        ("phoneNumber: must be a text; int was given", "phoneNumber: debe ser un texto; se dio un número entero"),
        (f"must be {CENTS}; float was given",
         "debe ser un número entero de centavos, como 1050; se dio un número con decimales"),
        ("the ledger must have schema version 1, and has version 2: another release of payclient made it",
         "el registro debe tener la versión 1 y tiene la 2: lo hizo otra versión de payclient"),
        ("must be -10**18 to 10**18", "debe ser de -10**18 a 10**18"),
        ("phone_number: must be + country code and number, such as +593991112223",
         "phone_number: debe ser +, código de país y número, como +593991112223"),
        ("must be an int; str was given", "debe ser un número entero; se dio un texto"),
        ("must be True or False; list was given", "debe ser true o false; se dio una lista"),
        ("a.csv: line 1: currency is a column, and --set gives it as well; there is no column phone_number; "
         "give --map phone_number=COLUMN, or --set phone_number=VALUE",
         "a.csv: línea 1: currency es una columna, y --set también lo da; no hay columna phone_number; "
         "dé --map phone_number=COLUMNA, o --set phone_number=VALOR"),
        ("a.csv: line 1: --key names the column k; --map tax names the column i, and the file has a, b",
         "a.csv: línea 1: --key nombra la columna k; --map tax nombra la columna i, y el archivo tiene a, b"),
        ("a.csv: line 1: tip stands beside the column t, which is read instead",
         "a.csv: línea 1: tip está junto a la columna t, que es la que se lee"),
        ("a: line 2: a quote is not closed, or stands inside a cell; the lines after it cannot be read",
         "a: línea 2: una comilla no se cierra, o está dentro de una celda; las líneas siguientes no se pueden leer"),
        ("a.csv: line 1 is not a header", "a.csv: la línea 1 no es un encabezado"),
        ("a.csv: is empty", "a.csv: está vacío"),
        ("Teléfono: must be given; valor: must be a whole number",
         "Teléfono: debe darse; valor: debe ser un número entero"),
        ("something that nobody has written", "something that nobody has written"),
    ],
)  # fmt: skip
def test_a_reason_has_its_spanish_form(english: str, spanish: str) -> None:
    """As far as it is known; in English it stays as it is."""
    assert reason(english) == english
    choose_language("es")
    assert reason(english) == spanish


def test_which_language_is_meant(tmp_path: Path, capfd: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """--language wins over LC_ALL and LANG; any language but Spanish is English."""
    rows = rows_of("lengua", 3)
    rows[0]["phone_number"] = ""
    file = write_csv(tmp_path / "cobros.csv", rows)
    arguments = ["charge", str(file), "--dry-run", "--skip-bad", str(tmp_path / "mal.csv")]
    for environment, options, said in (
        ({"LANG": "es_EC.UTF-8"}, [], "2 correctas, 1 mala, por omitir"),
        ({"LANG": "es_EC.UTF-8"}, ["--language", "en"], "2 good, 1 bad, which are left out"),
        ({"LANG": "C"}, ["--language", "es"], "2 correctas, 1 mala, por omitir"),
        ({"LANG": "es_EC.UTF-8", "LC_ALL": "pt_BR.UTF-8"}, [], "2 good, 1 bad"),
    ):
        with monkeypatch.context() as patch:
            for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            assert main([*options, *arguments]) == 0
        out, err = capfd.readouterr()
        assert said in " ".join(out.split())
        is_spanish = "correctas" in said
        assert ("línea 2, phone_number: debe darse" in err) is is_spanish
        assert ("USD 23,03" in out) is is_spanish


def test_small_amounts_are_asked_for(willing: Service, charge: Charge) -> None:
    """25 without --amounts is USD 0.25 in the plan, and nothing is sent until it is told which it is."""
    rows = [
        row | {"amount_with_tax": 25 + n, "tax": 0, "currency": "USD"}
        for n, row in enumerate(rows_of("small", 3))
    ]
    ran = charge(willing, rows, "--dry-run")
    assert ran.code == 2
    assert "USD 0.78 USD 0.25 USD 0.27" in ran.out
    ran = charge(willing, rows)
    assert ran.code == 2
    assert "give --amounts decimal where 25 means 25.00" in ran.err
    assert willing.truth("small") == {}
    assert charge(willing, rows, "--amounts", "cents").code == 0


def test_what_is_to_do_stands_at_the_end(silent: Service, charge: Charge) -> None:
    """One line for each thing, with its command; nothing where all is done."""
    rows = rows_of("todo", 2)
    ran = charge(silent, rows, "--wait", "0")
    assert ran.code == 4
    assert "to do: 2 rows not finished; run again: payclient charge" in ran.err
    silent.reject("todo")
    ran = charge(silent, rows)
    assert (ran.code, ran.err.count("to do:")) == (3, 1)
    for words in (
        "to do: 2 rows cancelled",
        "10 s after the first time at the earliest",
        "with a report of its own and the other options of this run: payclient charge NEW_FILE",
    ):
        assert words in ran.err


def exchange(status: int | None, error: str | None = None) -> Exchange:
    return Exchange(
        operation="status", method="GET", path="/", http_status=status, seconds=0.1, sent=True, error=error,
        client_transaction_id=None,
    )  # fmt: skip


def test_a_service_that_has_gone_is_told_of_once() -> None:
    """After two requests and ten seconds without any answer; a 5xx is one, and an error of the ledger says nothing."""
    reach, gone = Reach(), exchange(None, "TransportError")
    found = [
        reach.note(gone, 100.0), reach.note(gone, 109.0), reach.note(exchange(502, "TransportError"), 109.5),
        reach.note(gone, 110.0), reach.note(exchange(None, "LedgerUnavailableError"), 121.0),
        reach.note(exchange(None, "OutcomeUnknownError"), 122.0), reach.note(gone, 130.0),
    ]  # fmt: skip
    assert found == [None, None, None, None, None, "unreachable", None]
    assert reach.since == 110.0
    assert [reach.note(exchange(200), 131.0), reach.note(exchange(200), 132.0)] == ["reachable", None]


def test_a_run_says_that_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charge: Charge
) -> None:
    """While it waits for customers whose sales are open; the page is in the language, with its numbers and money."""
    page = tmp_path / "pagina.html"
    monkeypatch.setattr("payclient.cli.run.AWAY_SECONDS", 0.2)
    # A process: a simulator in this one would leave the connections that it accepts at its end.
    with simulated(tmp_path, "--answers", "ignore=1", window=1) as leaving:

        def stop() -> None:
            wait_until(lambda: leaving.counts()["created"] == 2)
            leaving.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        try:
            ran = charge(leaving, rows_of("gone", 2), "--language", "es", "--html", str(page))
        finally:
            stopper.join()
    assert (ran.code, ran.err.count("por hacer:")) == (4, 1)
    assert "2 filas sin final conocido; ejecute otra vez más tarde" in ran.err
    assert ran.err.count("el servicio no responde desde las") == 1
    assert "revise la red de esta máquina" in ran.err
    html = page.read_text(encoding="utf-8")
    for words in (
        '<html lang="es">', "Cobros de charges.csv", "Pago recibido de 0 de 2 cobros", "Vencido: 2",
        "USD 11,51",
    ):  # fmt: skip
        assert words in html


def test_the_plan_counts_corrections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """Phones with their shape, lines above, between and below the rows, suspected doubles, the end by the clock."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("time.time", lambda: 0.0)
    monkeypatch.setattr("payclient.cli.terminal.at", lambda when: f"<{when:g}>")
    file = tmp_path / "c.csv"
    file.write_text(
        "Cobros de marzo;;\n;;\nclave;telefono;valor\na;593987000031;12,50\n;;\nb;+593 98 700 0032;1,00\n"
        "c;0987000032;1,00\nTotal;;14,50\n"
    )
    arguments = [
        "charge", str(file), "--dry-run", "--profile", "payphone", "--key", "clave", "--map", "phone_number=telefono",
        "--map", "amount_without_tax=valor", "--set", "country_code=593", "--set", "currency=USD",
        "--amounts", "decimal",
    ]  # fmt: skip
    assert main(arguments) == 0
    out = capfd.readouterr().out
    assert "2 rows with the phone corrected to 0######### (593): 4, 6" in out
    assert "2 lines above the header; 1 line empty: 5; 1 line of totals below the rows: 8" in out
    assert "1 customer with the same amount more than once: lines 6 and 7" in out
    assert re.search(r"3 charges; over in \d+ min \d+ s at the latest, at <[\d.]+> if begun now", out)
