"""Reading a model's tokenizer from its directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import processors

from shared.errors import InvalidRequestError, ModelLoadError, Reason
from shared.text.tokenizer import Tokenizer
from shared.text.types import ChatMessage

WriteModel = Callable[..., Path]
HELLO = [ChatMessage("user", "Hello")]
BOS, IM_START, IM_END = 0, 1, 2  # <|endoftext|>, <|im_start|>, <|im_end|>
WITH_BOS = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", BOS)])


def backend_of(model: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))


class TestEncoding:
    def test_text_survives(self, write_model: WriteModel) -> None:
        tokenizer = Tokenizer.from_directory(write_model())
        for text in ("The quick brown fox", "日本 👍🏽\n", "<|im_start|>"):
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text

    def test_special_tokens_in_text_are_tokens(self, write_model: WriteModel) -> None:
        tokenizer = Tokenizer.from_directory(write_model())
        assert tokenizer.encode("<|im_start|>") == [IM_START]
        assert tokenizer.decode([IM_START]) == ""

    def test_vocab_size_is_above_every_id(self, write_model: WriteModel) -> None:
        tokenizer = Tokenizer.from_directory(write_model())
        assert tokenizer.vocab_size == backend_of(write_model()).get_vocab_size()
        assert max(tokenizer.encode("The quick brown fox")) < tokenizer.vocab_size

    def test_ids_beyond_the_vocabulary_give_no_text(self, write_model: WriteModel) -> None:
        assert Tokenizer.from_directory(write_model()).decode([10**6]) == ""

    def test_limits_of_the_training_do_not_cut_prompts(self, write_model: WriteModel) -> None:
        backend = backend_of(write_model())
        whole = backend.encode("The quick brown fox").ids
        assert 2 < len(whole) < 64
        backend.enable_truncation(2)
        backend.enable_padding(length=64)
        assert Tokenizer.from_directory(write_model(backend)).encode("The quick brown fox") == whole


class TestSequenceRule:
    @pytest.mark.parametrize(
        ("processor", "config", "before", "after"),
        [
            (None, {}, [], []),
            (WITH_BOS, {}, [BOS], []),
            (WITH_BOS, {"add_bos_token": False, "bos_token": "<|endoftext|>"}, [], []),
            (WITH_BOS, {"add_bos_token": True, "bos_token": "<|endoftext|>"}, [BOS], []),
            (None, {"add_bos_token": True, "bos_token": {"content": "<|endoftext|>"}}, [BOS], []),
            (None, {"add_bos_token": True, "bos_token": None}, [], []),
            (None, {"add_eos_token": True, "eos_token": "<|im_end|>"}, [], [IM_END]),
        ],
    )
    def test_what_the_model_states_goes_around_the_text(
        self,
        write_model: WriteModel,
        processor: processors.TemplateProcessing | None,
        config: dict[str, Any],
        before: list[int],
        after: list[int],
    ) -> None:
        backend = backend_of(write_model())
        plain = backend.encode("dog").ids
        if processor is not None:
            backend.post_processor = processor
        tokenizer = Tokenizer.from_directory(write_model(backend, tokenizer_config=config))
        assert tokenizer.encode("dog") == [*before, *plain, *after]


class TestEndOfSequence:
    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            ({}, ()),
            ({"config": {"eos_token_id": 5}}, (5,)),
            ({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": [9, 7, 9]}}, (7, 9)),
            ({"config": {"eos_token_id": 5}, "generation_config": {}}, (5,)),
            ({"config": {"eos_token_id": None}, "tokenizer_config": {"eos_token": "<|im_end|>"}}, (IM_END,)),
            ({"config": {"eos_token_id": 5}, "tokenizer_config": {"eos_token": {"content": "<|im_end|>"}}}, (2, 5)),
            ({"tokenizer_config": {"eos_token": "<absent>"}}, ()),
        ],
    )
    def test_ids(self, write_model: WriteModel, files: dict[str, Any], expected: tuple[int, ...]) -> None:
        assert Tokenizer.from_directory(write_model(**files)).eos_token_ids == expected


class TestChat:
    TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"

    def test_special_tokens_are_those_of_the_template_alone(self, write_model: WriteModel) -> None:
        config = {"chat_template": self.TEMPLATE, "bos_token": "<|endoftext|>", "add_bos_token": True}
        tokenizer = Tokenizer.from_directory(write_model(tokenizer_config=config))
        assert tokenizer.has_chat_template
        assert tokenizer.render_chat(HELLO) == "<|endoftext|>user:Hello"
        assert tokenizer.encode_chat(HELLO) == tokenizer.encode("user:Hello")
        assert tokenizer.encode_chat(HELLO).count(BOS) == 1

    def test_generation_prompt(self, write_model: WriteModel) -> None:
        config = {"chat_template": "x{% if add_generation_prompt %}y{% endif %}"}
        tokenizer = Tokenizer.from_directory(write_model(tokenizer_config=config))
        assert tokenizer.render_chat(HELLO) == "xy"
        assert tokenizer.render_chat(HELLO, add_generation_prompt=False) == "x"
        assert tokenizer.encode_chat(HELLO, add_generation_prompt=False) == tokenizer.encode("x")

    def test_the_file_of_its_own_wins(self, write_model: WriteModel) -> None:
        model = write_model(tokenizer_config={"chat_template": "config"})
        (model / "chat_template.jinja").write_text("file", encoding="utf-8")
        assert Tokenizer.from_directory(model).render_chat(HELLO) == "file"

    def test_default_of_many(self, write_model: WriteModel) -> None:
        templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
        tokenizer = Tokenizer.from_directory(write_model(tokenizer_config={"chat_template": templates}))
        assert tokenizer.render_chat(HELLO) == "plain"

    def test_model_without_one(self, write_model: WriteModel) -> None:
        tokenizer = Tokenizer.from_directory(write_model())
        assert not tokenizer.has_chat_template
        with pytest.raises(InvalidRequestError, match="no chat template") as caught:
            tokenizer.encode_chat(HELLO)
        assert caught.value.reason is Reason.CHAT_INVALID


class TestBrokenDirectories:
    def test_sequence_rule_with_a_token_that_is_absent(self, write_model: WriteModel) -> None:
        with pytest.raises(ModelLoadError, match="'<absent>'"):
            Tokenizer.from_directory(write_model(tokenizer_config={"add_bos_token": True, "bos_token": "<absent>"}))

    def test_no_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json"):
            Tokenizer.from_directory(tmp_path)

    @pytest.mark.parametrize("content", ["", "{", "{}", '{"model": {"type": "Unheard"}}'])
    def test_tokenizer_that_is_none(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(ModelLoadError, match=r"tokenizer\.json: "):
            Tokenizer.from_directory(tmp_path)

    @pytest.mark.parametrize(("content", "what"), [("{", "is not JSON"), ("[1]", "holds no object")])
    @pytest.mark.parametrize("name", ["tokenizer_config", "generation_config"])
    def test_files_that_are_none(self, write_model: WriteModel, name: str, content: str, what: str) -> None:
        model = write_model()
        (model / f"{name}.json").write_text(content, encoding="utf-8")
        with pytest.raises(ModelLoadError, match=rf"{name}\.json {what}"):
            Tokenizer.from_directory(model)
