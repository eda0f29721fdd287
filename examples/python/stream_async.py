"""Baton from Python, with asyncio: `python stream_async.py [TARGET [PROMPT]]`."""

import argparse
import asyncio
import json
import sys

from baton_client import AsyncBatonClient, BatonClientError, ChatMessage, Delta, InvalidArgument, JsonSchema

CITY_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


def quoted(text: str) -> str:
    """A text on one line."""
    return json.dumps(text, ensure_ascii=False)


async def stream(client: AsyncBatonClient, prompt: str) -> None:
    """A completion, printed as it comes; leaving the block early would end it on the server too."""
    async with client.stream(prompt, temperature=0, max_tokens=24) as events:
        async for event in events:
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)
    print()


async def chat(client: AsyncBatonClient) -> str:
    """An answer that is JSON of a schema, whatever the model would have liked to say."""
    messages = [ChatMessage("user", "Name one capital city and its country.")]
    constraint = JsonSchema(json.dumps(CITY_SCHEMA))
    try:
        result = await client.generate(messages, temperature=0, max_tokens=64, constraint=constraint)
    except InvalidArgument as error:  # nothing but another request helps; other errors are for `main`
        if error.reason == "CONSTRAINT_INVALID":
            raise SystemExit(f"this schema is not served: {error.metadata['detail']}") from error
        raise
    city = json.loads(result.completions[0].text)
    return f"{city['city']}, {city['country']}"


async def completions(client: AsyncBatonClient) -> str:
    """Two completions of one prompt, and how likely each of their tokens was."""
    result = await client.generate("Rivers are", temperature=0.8, seed=7, max_tokens=6, n=2, logprobs=1)
    lines = []
    for completion in result.completions:
        lines.append(f"{completion.index}: {quoted(completion.text)}")
        for place in completion.logprobs:
            text, most_likely = quoted(place.token.text), quoted(place.alternatives[0].text)
            lines.append(f"   {place.token.logprob:.3f} {text}, most likely {most_likely}")
    return "\n".join(lines)


async def run(target: str, prompt: str) -> None:
    """The first alone, then the other two at the same time: the server computes them in one batch."""
    async with AsyncBatonClient(target, timeout=60) as client:
        print("== stream")
        await stream(client, prompt)
        answer, likelihoods = await asyncio.gather(chat(client), completions(client))
        print(f"== chat\n{answer}\n== completions\n{likelihoods}")


def main() -> int:
    """Runs the three; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="localhost:50051")
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    arguments = parser.parse_args()
    try:
        asyncio.run(run(arguments.target, arguments.prompt))
    except BatonClientError as error:
        print(f"\nfailed: {error.status.name} {error.reason}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
