"""Writes docs/api.md from the comments in protos/baton/v1/*.proto; with --check, fails where it is not up to date.

Own code, because what is maintained for this (sabledocs) makes websites, and this page is read beside the code.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

ROOT = Path(__file__).resolve().parent
HEAD = ROOT / "api.head.md"
PAGE = ROOT.parent / "docs" / "api.md"
FILES = ("generation", "prefill", "kv")
"""What clients call comes first."""

Place = tuple[int, ...]
"""Where something stands in a file: numbers of fields of descriptor.proto, each with an index."""

_MESSAGES, _ENUMS, _SERVICES, _INNER = 4, 5, 6, 2
_EXTERNAL = {"google.protobuf.Duration": "https://protobuf.dev/reference/protobuf/google.protobuf/#duration"}


def describe() -> list[FileDescriptorProto]:
    """The files as protoc reads them, with their comments."""
    sources = [f"baton/v1/{name}.proto" for name in FILES]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", "--include_source_info"]
        subprocess.run([*command, f"--descriptor_set_out={target}", *sources], check=True)
        files = {file.name: file for file in FileDescriptorSet.FromString(target.read_bytes()).file}
    return [files[source] for source in sources]


def page(files: Sequence[FileDescriptorProto]) -> str:
    """The whole of docs/api.md."""
    return "\n".join([HEAD.read_text(), *(line for file in files for line in _file(file))])


def missing_comments(files: Sequence[FileDescriptorProto]) -> list[str]:
    """What has no comment though readers need one: fields, and methods."""
    return [name for file in files for place, name in _members(file) if place not in _comments(file)]


def _members(file: FileDescriptorProto) -> Iterator[tuple[Place, str]]:
    for at, message in enumerate(file.message_type):
        yield from (((_MESSAGES, at, _INNER, n), f"{message.name}.{field.name}") for n, field in enumerate(message.field))
    for at, service in enumerate(file.service):
        yield from (((_SERVICES, at, _INNER, n), f"{service.name}.{rpc.name}") for n, rpc in enumerate(service.method))


def _file(file: FileDescriptorProto) -> Iterator[str]:
    comments = _comments(file)
    for at, service in enumerate(file.service):
        yield from _service(service, (_SERVICES, at), comments)
    yield from (f"## {file.name.removeprefix('baton/v1/')}", "")
    for at, message in enumerate(file.message_type):
        yield from _message(message, (_MESSAGES, at), comments)
    for at, enum in enumerate(file.enum_type):
        yield from _enum(enum, (_ENUMS, at), comments)


def _comments(file: FileDescriptorProto) -> dict[Place, str]:
    found = ((tuple(place.path), " ".join(place.leading_comments.split())) for place in file.source_code_info.location)
    return {place: comment for place, comment in found if comment}


def _heading(name: str, place: Place, comments: dict[Place, str], level: str = "###") -> Iterator[str]:
    yield from (f"{level} {name}", "")
    if place in comments:
        yield from (_prose(comments[place]), "")


def _service(service: ServiceDescriptorProto, place: Place, comments: dict[Place, str]) -> Iterator[str]:
    yield from _heading(service.name, place, comments, "##")
    yield from ("| method | request | response | |", "|---|---|---|---|")
    for at, method in enumerate(service.method):
        request = ("stream of " if method.client_streaming else "") + _link(method.input_type)
        response = ("stream of " if method.server_streaming else "") + _link(method.output_type)
        yield f"| `{method.name}` | {request} | {response} | {_cell(comments, (*place, _INNER, at))} |"
    yield ""


def _message(message: DescriptorProto, place: Place, comments: dict[Place, str]) -> Iterator[str]:
    yield from _heading(message.name, place, comments)
    if not message.field:
        yield from ("No fields.", "")
        return
    yield from ("| field | | type | |", "|---|--:|---|---|")
    for at, field in enumerate(message.field):
        yield f"| `{field.name}` | {field.number} | {_type(field, message)} | {_cell(comments, (*place, _INNER, at))} |"
    yield ""


def _enum(enum: EnumDescriptorProto, place: Place, comments: dict[Place, str]) -> Iterator[str]:
    yield from _heading(enum.name, place, comments)
    yield from ("| value | | |", "|---|--:|---|")
    for at, value in enumerate(enum.value):
        yield f"| `{value.name}` | {value.number} | {_cell(comments, (*place, _INNER, at))} |"
    yield ""


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entry = next((inner for inner in message.nested_type if field.type_name.endswith(f".{inner.name}")), None)
    if entry is not None and entry.options.map_entry:
        return f"map of {_one(entry.field[0])} to {_one(entry.field[1])}"
    if field.proto3_optional:
        return f"{_one(field)}, optional"
    if field.HasField("oneof_index"):
        return f"{_one(field)}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return ("list of " if field.label == FieldDescriptorProto.LABEL_REPEATED else "") + _one(field)


def _one(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _link(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _link(type_name: str) -> str:
    full = type_name.removeprefix(".")
    name = full.rpartition(".")[2]
    return f"[{name}]({_EXTERNAL.get(full, f'#{name.lower()}')})"


def _cell(comments: dict[Place, str], place: Place) -> str:
    return _prose(comments.get(place, ""))


def _prose(comment: str) -> str:
    """A comment as Markdown; what would be markup in it is not."""
    return comment.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main() -> int:
    """Writes or checks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if docs/api.md is not up to date")
    check = parser.parse_args().check
    files = describe()
    missing = missing_comments(files)
    if missing:
        sys.stderr.write(f"no comment: {', '.join(missing)}\n")
        return 1
    wanted = page(files)
    if not check:
        PAGE.write_text(wanted)
    elif not PAGE.exists() or PAGE.read_text() != wanted:
        sys.stderr.write("docs/api.md is not up to date; run `make protos`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
