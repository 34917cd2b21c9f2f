"""`payclient guide`: the guides that are shipped with the package."""

from importlib.resources import files
from typing import Annotated

from cyclopts import Parameter

from payclient.errors import ConfigurationError

#: The order in which to read.
TOPICS = (
    "start", "payphone", "shop", "web", "aiohttp", "django", "sync", "forms", "batch", "testing", "unknown", "errors",
    "profile", "ledger", "operations", "fulfilment", "logs", "design", "es/empezar",
)  # fmt: skip


def guide(topic: str = "", /, *, every: Annotated[bool, Parameter(name="--all")] = False) -> None:
    """Show a guide: start, payphone, web, forms, batch, testing, es/empezar ... Without a topic, list all.

    :param every: Print all guides as one text, for language models.
    """
    if every:
        print("\n".join(_text(each) for each in TOPICS), end="")
    elif topic in TOPICS:
        print(_text(topic), end="")
    elif topic:
        raise ConfigurationError(f"guide: the topic must be one of {', '.join(TOPICS)}")
    else:
        for each in TOPICS:
            print(f"payclient guide {each:<12} {_text(each).partition(chr(10))[0].removeprefix('# ')}")


def _text(topic: str) -> str:
    return files("payclient").joinpath("guide", *f"{topic}.md".split("/")).read_text(encoding="utf-8")
