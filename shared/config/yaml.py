"""YAML 1.2, read safely: mappings, lists and scalars only; a key that stands twice is an error."""

from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from shared.config.schema import describe
from shared.errors import ConfigError


def read_mapping(path: Path) -> dict[object, object]:
    """The mapping at the top of a file.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 or YAML, or holds something else.
    """
    return parse_mapping(read_text(path), str(path))


def parse_mapping(text: str, source: str) -> dict[object, object]:
    """The mapping at the top of a YAML document; `source` names it in errors.

    Raises:
        ConfigError: the text is not YAML, or holds something else.
    """
    value = parse(text, source)
    if value is None:
        raise _refuse(source, "found an empty file; needs a mapping of keys ({} for all defaults)")
    if not isinstance(value, dict):
        raise _refuse(source, f"found {describe(value)} at the top; needs a mapping of keys")
    return value


def parse(text: str, source: str) -> object:
    """The value that a YAML document holds; `source` names it in errors.

    Raises:
        ConfigError: the text is not YAML.
    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        raise _refuse(source, f"{_place(error)}{_problem(error)}; needs valid YAML") from None
    except (YAMLError, ValueError) as error:  # ValueError: scalars that only look like a date or a number
        raise _refuse(source, f"found what cannot be read ({_one_line(str(error))}); needs valid YAML") from None
    except RecursionError:
        raise _refuse(source, "found values nested too deeply; needs a few levels") from None


def read_text(path: Path) -> str:
    """The text of a file, its byte order mark left out.

    Raises:
        ConfigError: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refuse(str(path), f"found bytes that are no UTF-8, at byte {error.start}; needs UTF-8 text") from None
    except FileNotFoundError:
        raise _refuse(str(path), "found no such file; needs a YAML file") from None
    except IsADirectoryError:
        raise _refuse(str(path), "found a directory; needs a YAML file") from None
    except OSError as error:
        raise _refuse(str(path), f"cannot be read ({error.strerror}); needs a YAML file") from None


def _place(error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


def _problem(error: MarkedYAMLError) -> str:
    return _one_line(" ".join(part for part in (error.context, error.problem) if part))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _refuse(source: str, message: str) -> ConfigError:
    return ConfigError(f"{source}: {message}", metadata={"file": source})
