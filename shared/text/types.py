"""Values of chat prompts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    Attributes:
        role: "system", "user", "assistant" or "tool".
        content: The message's text.
    """

    role: str
    content: str
