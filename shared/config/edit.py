"""Sets one list of integers in a YAML text. All other characters stay: comments, order, quotes, spaces, line ends.

The text is not written anew from its values, it is cut where the list stands: a list is replaced by one in flow style,
a missing key is added behind the last one of its mapping. The result is parsed again and must hold what the text held,
and the list; where it does not (two keys may share one list through an alias), nothing is changed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from shared.config.explain import KeyPath, dotted
from shared.config.overrides import Override, apply
from shared.config.yaml import parse
from shared.errors import ConfigError

_INDENTATION = 2
_COMMENT = re.compile(r"#[^\r\n]*")


def with_list(text: str, path: KeyPath, values: Sequence[int], source: str) -> str:
    """The text of a mapping with the list at `path` set; mappings on the way are made where they are missing.

    Args:
        text: valid YAML.
        path: keys from the top.
        values: the new list.
        source: names the text in errors.

    Raises:
        ConfigError: the list cannot be set without changing something else.
    """
    root = YAML(typ="safe", pure=True).compose(text)
    edited = _edited(text, root, path, f"[{', '.join(map(str, values))}]")
    before = parse(text, source)
    assert isinstance(before, dict)
    if edited is None or not _holds(edited, apply([Override("", path, list(values))], before)):
        reason = "found a form that cannot be edited without changing more; needs the list to be pasted by hand"
        raise ConfigError(f"{source}: {dotted(path)}: {reason}", metadata={"file": source, "keys": dotted(path)})
    return edited


def _holds(text: str, expected: object) -> bool:
    try:
        return parse(text, "") == expected
    except ConfigError:
        return False


@dataclass(frozen=True)
class _Entry:
    """A key of a mapping and its value, as they lie in the text."""

    key: Node
    value: Node


def _edited(text: str, node: Node, path: KeyPath, flow_list: str, *, is_root: bool = True) -> str | None:
    if not isinstance(node, MappingNode):
        return None
    entry = _entry(node, path[0])
    if entry is None:
        return _inserted(text, node, path, flow_list, is_root=is_root)
    if len(path) == 1:
        return _replaced(text, entry, flow_list)
    return _edited(text, entry.value, path[1:], flow_list, is_root=False)


def _entry(mapping: MappingNode, name: str) -> _Entry | None:
    return next((_Entry(key, value) for key, value in mapping.value if key.value == name), None)


def _replaced(text: str, entry: _Entry, flow_list: str) -> str:
    """Comments inside the old list go above it."""
    is_flow = not isinstance(entry.value, CollectionNode) or entry.value.flow_style
    start, end = _start(entry.value) if is_flow else _end(entry.key), _end(entry.value)
    line = text.rfind("\n", 0, _start(entry.key)) + 1
    margin = text[line : len(text) - len(text[line:].lstrip(" "))]
    comments = [f"{margin}{comment}{_line_end(text)}" for comment in _COMMENT.findall(text[start:end])]
    between = "" if is_flow else ": "
    return f"{text[:line]}{''.join(comments)}{text[line:start]}{between}{flow_list}{text[end:]}"


def _inserted(text: str, mapping: MappingNode, path: KeyPath, flow_list: str, *, is_root: bool) -> str:
    if mapping.flow_style:
        entry = f"{': {'.join(path)}: {flow_list}{'}' * (len(path) - 1)}"
        if not mapping.value:
            place = text.index("{", _start(mapping)) + 1
            return f"{text[:place]}{entry}{text[place:]}"
        place = _last_end(mapping)
        return f"{text[:place]}, {entry}{text[place:]}"
    line_end = _line_end(text)
    margin = " " * mapping.value[0][0].start_mark.column
    lines = [f"{margin}{' ' * _INDENTATION * depth}{key}:" for depth, key in enumerate(path)]
    blank_line = line_end if is_root and line_end * 2 in text else ""
    place = text.find("\n", _last_end(mapping)) + 1
    head, tail = (text[:place], text[place:]) if place else (f"{text}{line_end}", "")
    return f"{head}{blank_line}{line_end.join(lines)} {flow_list}{line_end}{tail}"


def _last_end(mapping: MappingNode) -> int:
    """Where the last value of a mapping ends; behind its key's colon where there is none."""
    key, value = mapping.value[-1]
    is_absent = isinstance(value, ScalarNode) and _start(value) == value.end_mark.index
    return _end(key) + 1 if is_absent else _end(value)


def _start(node: Node) -> int:
    index: int = node.start_mark.index
    return index


def _end(node: Node) -> int:
    """Where a node ends; the marks of block nodes are at whatever comes after them."""
    if isinstance(node, CollectionNode) and not node.flow_style:
        return _last_end(node) if isinstance(node, MappingNode) else _end(node.value[-1])
    index: int = node.end_mark.index
    return index


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
