from baton_client import ChatMessage
from cli.conversation import Conversation


def test_all_turns_are_sent_after_the_system_message() -> None:
    conversation = Conversation("be kind")
    conversation.remember("q1", "a1")
    assert conversation.messages("q2") == [
        ChatMessage("system", "be kind"),
        ChatMessage("user", "q1"),
        ChatMessage("assistant", "a1"),
        ChatMessage("user", "q2"),
    ]
    assert len(conversation.messages("q3")) == 4, "asking is not remembering"


def test_a_reset_keeps_the_system_message() -> None:
    conversation = Conversation("be kind")
    conversation.remember("q1", "a1")
    assert conversation.has_turns
    conversation.reset()
    assert not conversation.has_turns
    assert conversation.messages("q") == [ChatMessage("system", "be kind"), ChatMessage("user", "q")]
    assert Conversation().messages("q") == [ChatMessage("user", "q")]
