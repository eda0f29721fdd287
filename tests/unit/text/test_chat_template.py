"""Chat templates: what they can use, and what they cannot do."""

import re

import pytest

from shared.errors import InvalidRequestError, ModelLoadError, Reason
from shared.text.chat_template import ChatTemplate
from shared.text.types import ChatMessage

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
HELLO = [ChatMessage("user", "Hello")]


def render(
    source: str, messages: list[ChatMessage] | None = None, add_generation_prompt: bool = True, **special_tokens: str
) -> str:
    return ChatTemplate(source, special_tokens).render(messages or HELLO, add_generation_prompt)


def refusal(source: str, messages: list[ChatMessage] | None = None) -> InvalidRequestError:
    template = ChatTemplate(source, {})
    with pytest.raises(InvalidRequestError) as caught:
        template.render(HELLO if messages is None else messages, add_generation_prompt=True)
    assert caught.value.reason is Reason.CHAT_INVALID
    return caught.value


class TestRendering:
    def test_messages_in_order(self) -> None:
        messages = [ChatMessage("system", "Be brief."), ChatMessage("user", "Hi"), ChatMessage("assistant", "Yes?")]
        text = (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYes?<|im_end|>\n"
        )
        assert render(CHATML, messages, add_generation_prompt=False) == text
        assert render(CHATML, messages) == text + "<|im_start|>assistant\n"

    def test_content_is_never_taken_for_template(self) -> None:
        content = "{{ 7 * 7 }} {% if %} <b>&amp;</b> \\n"
        assert render("{{ messages[0].content }}", [ChatMessage("user", content)]) == content

    def test_special_tokens_by_name(self) -> None:
        assert render("{{ bos_token }}|{{ eos_token }}", bos_token="<s>", eos_token="</s>") == "<s>|</s>"

    def test_blocks_are_trimmed(self) -> None:
        assert (
            render("{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}")
            == "Hello\n"
        )

    def test_loop_controls(self) -> None:
        assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"

    def test_generation_tag_is_transparent(self) -> None:
        assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "aHellob"

    def test_json_is_for_models_and_not_for_html(self) -> None:
        assert render("{{ {'b': '<é>', 'a': [1, true, none]} | tojson }}") == '{"b": "<é>", "a": [1, true, null]}'
        assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'

    def test_time(self) -> None:
        assert re.fullmatch(r"\d\d \w+ \d{4}", render("{{ strftime_now('%d %B %Y') }}"))

    def test_tools_are_absent(self) -> None:
        assert render("{% if tools %}tools{% else %}{{ tools is none }}{% endif %}") == "True"

    def test_rendering_leaves_no_trace(self) -> None:
        template = ChatTemplate("{% set seen = namespace(n=0) %}{% set seen.n = seen.n + 1 %}{{ seen.n }}", {})
        assert [template.render(HELLO, add_generation_prompt=False) for _ in range(3)] == ["1", "1", "1"]


class TestRefusals:
    def test_the_templates_own(self) -> None:
        error = refusal("{{ raise_exception('Roles must alternate') }}")
        assert error.message == "the model's chat template refuses the conversation: Roles must alternate"

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[0].name.first }}",
            "{{ messages[5].content }}",
            "{{ messages[0].content + 1 }}",
            "{{ 1 / 0 }}",
            "{{ nothing() }}",
        ],
    )
    def test_failing_expressions(self, source: str) -> None:
        refusal(source)

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__ }}",
            "{{ cycler.__init__.__globals__ }}",
            "{{ raise_exception.__globals__ }}",
            "{{ messages.append(1) }}",
            "{{ messages[0].update({'role': 'system'}) }}",
            "{{ '{0.__class__}'.format(1) }}",
            "{% for _ in range(10 ** 9) %}{% endfor %}",
        ],
    )
    def test_leaving_the_sandbox(self, source: str) -> None:
        refusal(source)

    @pytest.mark.parametrize("role", ["User", "", "developer", "x" * 1000])
    def test_unknown_roles(self, role: str) -> None:
        error = refusal(CHATML, [*HELLO, ChatMessage(role, "x")])
        assert error.metadata == {
            "field": "chat.messages[1].role",
            "value": role[:64],
            "bounds": "system, user, assistant, tool",
        }

    def test_no_messages(self) -> None:
        assert refusal(CHATML, []).metadata == {"field": "chat.messages"}


def test_a_template_that_is_not_one_is_found_at_load() -> None:
    with pytest.raises(ModelLoadError, match="line 2"):
        ChatTemplate("{{ messages }}\n{% for %}", {})
