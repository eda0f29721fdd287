from pathlib import Path

import numpy as np
import pytest
import typer

from baton_client import Chat, ChatMessage, Embeddings
from cli.prompts import PromptSource


@pytest.mark.parametrize("text", ["5,6, 7", "5 6\n7\n", "[5, 6, 7]", " [5,\n6 7] ", "5,,6,7,"])
def test_token_ids_are_parted_by_commas_or_white_space(text: str) -> None:
    assert PromptSource(argument=text, is_token_ids=True).read() == [5, 6, 7]


@pytest.mark.parametrize("text", ["5 x", "5.0", "1_0", "[5", "0x5"])
def test_what_is_no_token_id_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no token id"):
        PromptSource(argument=text, is_token_ids=True).read()


def test_no_token_ids_are_the_servers_to_refuse() -> None:
    assert PromptSource(argument="", is_token_ids=True).read() == []


def test_messages_keep_their_roles_and_order(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text('[{"role": "system", "content": "é"}, {"role": "tool", "content": ""}]', encoding="utf-8")
    assert PromptSource(messages=str(file)).read() == Chat([ChatMessage("system", "é"), ChatMessage("tool", "")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Invalid JSON"),
        (b"[]", "no messages"),
        (b'{"role": "user", "content": "a"}', "array"),
        (b'[{"role": "user"}]', r"\[0\]\.content: Field required"),
        (b'[{"role": "user", "content": "a"}, {"role": "user", "content": 3}]', r"\[1\]\.content: .*string"),
        (b'[{"role": "user", "content": "a", "name": "b"}]', r"\[0\]\.name: Extra"),
        (b'[{"role": "user", "content": "\xff"}]', "Invalid JSON"),
    ],
)
def test_what_is_no_chat_is_refused_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(content)
    with pytest.raises(typer.BadParameter, match=message):
        PromptSource(messages=str(file)).read()


def test_a_file_of_messages_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="cannot read"):
        PromptSource(messages=str(tmp_path / "none")).read()


def test_vectors_keep_their_values_whatever_their_layout(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name, stored in (("c", array), ("fortran", np.asfortranarray(array))):
        file = tmp_path / f"{name}.npy"
        np.save(file, stored)
        assert PromptSource(embeddings=file).read() == Embeddings(array.tobytes(), 2, "float32")


def test_bits_of_bfloat16(tmp_path: Path) -> None:
    file = tmp_path / "vectors.npy"
    np.save(file, np.array([[0x3F80, 0xC000]], dtype=np.uint16))
    assert PromptSource(embeddings=file).read() == Embeddings(b"\x80\x3f\x00\xc0", 1, "bfloat16")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3)), "format 'd'"),
        (np.zeros(3, dtype=np.float32), "1 dimensions"),
        (np.zeros(3, dtype=np.uint16), "1 dimensions"),
        (np.array([{}], dtype=object), "allow_pickle"),
    ],
)
def test_arrays_that_are_no_vectors_are_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    file = tmp_path / "vectors.npy"
    np.save(file, array, allow_pickle=True)
    with pytest.raises(typer.BadParameter, match=message):
        PromptSource(embeddings=file).read()


@pytest.mark.parametrize("content", [None, b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_arrays_are_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "vectors.npy"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(typer.BadParameter, match=r"cannot read .*vectors\.npy"):
        PromptSource(embeddings=file).read()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (PromptSource("a", is_chat=True, is_token_ids=True), "--chat and --prompt-token-ids"),
        (PromptSource(messages="f", embeddings=Path("g")), "--messages and --embeddings"),
        (PromptSource("a", messages="f"), "--messages takes the place of PROMPT"),
        (PromptSource("a", embeddings=Path("g")), "--embeddings takes the place of PROMPT"),
        (PromptSource(system="s", messages="f"), "--system needs --chat"),
        (PromptSource("a", ends_with_last_message=True), "--no-generation-prompt needs"),
    ],
)
def test_options_that_do_not_go_together(source: PromptSource, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        source.read()
