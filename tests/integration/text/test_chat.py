"""Chats through the default model's own template, against transformers."""

from pathlib import Path

import pytest
import transformers

from shared.text.tokenizer import Tokenizer
from shared.text.types import ChatMessage

SYSTEM = ChatMessage("system", "Be brief.\nBe kind.")
USER = ChatMessage("user", "  Grüße! What is <|im_end|> in 北京?\n")
ASSISTANT = ChatMessage("assistant", "It ends a message.")
TOOL = ChatMessage("tool", '{"temperature": 21.5}')
CONVERSATIONS = {
    "user": [USER],
    "no_content": [ChatMessage("user", "")],
    "system": [SYSTEM, USER],
    "system_later": [USER, SYSTEM],
    "assistant": [USER, ASSISTANT, USER],
    "ends_with_the_assistant": [SYSTEM, USER, ASSISTANT],
    "tool": [USER, ASSISTANT, TOOL],
    "all": [SYSTEM, USER, ASSISTANT, TOOL, ASSISTANT, USER],
}


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(smollm2_dir)


@pytest.fixture(scope="module")
def reference(smollm2_dir: Path) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(smollm2_dir)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_chats_are_those_of_transformers(
    tokenizer: Tokenizer,
    reference: transformers.PreTrainedTokenizerBase,
    messages: list[ChatMessage],
    add_generation_prompt: bool,
) -> None:
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    text = reference.apply_chat_template(conversation, tokenize=False, add_generation_prompt=add_generation_prompt)
    token_ids = reference.apply_chat_template(
        conversation, tokenize=True, add_generation_prompt=add_generation_prompt, return_dict=False
    )
    assert tokenizer.render_chat(messages, add_generation_prompt) == text
    assert tokenizer.encode_chat(messages, add_generation_prompt) == token_ids
    assert text.endswith("<|im_start|>assistant\n") is add_generation_prompt
