"""What a conversation remembers."""

from baton_client import ChatMessage


class Conversation:
    """The turns of a chat: a question and its answer each, after the system's message.

    Attributes:
        system: the message before all turns, or None.
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[ChatMessage] = []

    @property
    def has_turns(self) -> bool:
        """Whether anything has been said."""
        return bool(self._turns)

    def messages(self, question: str) -> list[ChatMessage]:
        """The chat that asks for the answer to `question`."""
        head = [] if self.system is None else [ChatMessage("system", self.system)]
        return [*head, *self._turns, ChatMessage("user", question)]

    def remember(self, question: str, answer: str) -> None:
        """Adds a turn."""
        self._turns += [ChatMessage("user", question), ChatMessage("assistant", answer)]

    def reset(self) -> None:
        """Forgets all turns; the system's message stays."""
        self._turns.clear()
