"""Baton from Python, with threads: `python stream.py [TARGET [PROMPT]]`."""

import argparse
import json
import sys

from baton_client import BatonClient, BatonClientError, ChatMessage, Delta, InvalidArgument, JsonSchema

CITY_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


def quoted(text: str) -> str:
    """A text on one line."""
    return json.dumps(text, ensure_ascii=False)


def stream(client: BatonClient, prompt: str) -> None:
    """A completion, printed as it comes; leaving the block early would end it on the server too."""
    with client.stream(prompt, temperature=0, max_tokens=24) as events:
        for event in events:
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)
    print()


def chat(client: BatonClient) -> None:
    """An answer that is JSON of a schema, whatever the model would have liked to say."""
    messages = [ChatMessage("user", "Name one capital city and its country.")]
    constraint = JsonSchema(json.dumps(CITY_SCHEMA))
    try:
        result = client.generate(messages, temperature=0, max_tokens=64, constraint=constraint)
    except InvalidArgument as error:  # nothing but another request helps; other errors are for `main`
        if error.reason == "CONSTRAINT_INVALID":
            raise SystemExit(f"this schema is not served: {error.metadata['detail']}") from error
        raise
    city = json.loads(result.completions[0].text)
    print(f"{city['city']}, {city['country']}")


def completions(client: BatonClient) -> None:
    """Two completions of one prompt, and how likely each of their tokens was."""
    result = client.generate("Rivers are", temperature=0.8, seed=7, max_tokens=6, n=2, logprobs=1)
    for completion in result.completions:
        print(f"{completion.index}: {quoted(completion.text)}")
        for place in completion.logprobs:
            text, most_likely = quoted(place.token.text), quoted(place.alternatives[0].text)
            print(f"   {place.token.logprob:.3f} {text}, most likely {most_likely}")


def main() -> int:
    """Runs the three; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="localhost:50051")
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    arguments = parser.parse_args()
    try:
        with BatonClient(arguments.target, timeout=60) as client:
            print("== stream")
            stream(client, arguments.prompt)
            print("== chat")
            chat(client)
            print("== completions")
            completions(client)
    except BatonClientError as error:
        print(f"\nfailed: {error.status.name} {error.reason}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
