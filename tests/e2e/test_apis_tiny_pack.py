"""The embedded pack behind the messages and the completion API, with the real engine and the real client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.gateway.harness import GatewayProcess, running_gateway

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = json.loads((ROOT / "tests" / "goldens" / "tiny_transcripts.json").read_text())
QUESTION = [{"role": "user", "content": "What is 48 - 19?"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(tmp_path_factory.mktemp("tiny"), model=ROOT / "packs" / "tiny", fake=False) as process:
        process.wait_ready(120)
        yield process


@pytest.fixture
def client(gateway: GatewayProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key="unused", max_retries=0)


def complete(gateway: GatewayProcess, prompt: Any, **fields: Any) -> Any:
    reply = gateway.request("POST", "/completion", json_body={"prompt": prompt, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_ids_in_and_the_committed_ids_out(gateway: GatewayProcess) -> None:
    for transcript in TRANSCRIPTS[:4]:
        body = complete(gateway, transcript["prompt"], temperature=0, return_tokens=True)
        assert body["tokens"] == transcript["reply"]
        assert (body["stop_type"], body["tokens_evaluated"]) == ("eos", len(transcript["prompt"]))


def test_a_template_and_a_completion_are_a_chat(gateway: GatewayProcess) -> None:
    prompt = gateway.request("POST", "/apply-template", json_body={"messages": QUESTION}).json()["prompt"]
    text = complete(gateway, prompt, temperature=0)["content"]
    message = gateway.chat(*QUESTION, temperature=0).json()["choices"][0]["message"]
    assert prompt.endswith("<think>\n")
    assert text == f"{message['reasoning_content']}\n</think>\n\n{message['content']}"


def test_a_saved_request_gives_the_same_again(gateway: GatewayProcess) -> None:
    fields = {"temperature": 1.0, "seed": 7, "n_predict": 40, "top_k": 40, "cache_prompt": True, "n_probs": 3}
    first, second = (complete(gateway, "The river", **fields) for _ in range(2))
    assert first["content"] == second["content"]
    assert first["completion_probabilities"] == second["completion_probabilities"]
    drawn = complete(gateway, "The river", temperature=1.0, n_predict=20)
    again = complete(gateway, "The river", **drawn["generation_settings"])  # they hold the seed that was drawn
    assert again["content"] == drawn["content"]


def test_probabilities_of_the_model(gateway: GatewayProcess) -> None:
    entries = complete(gateway, "The river", temperature=0, n_predict=5, n_probs=4)["completion_probabilities"]
    for entry in entries:
        logprobs = [candidate["logprob"] for candidate in entry["top_logprobs"]]
        assert len(logprobs) == 4
        assert logprobs == sorted(logprobs, reverse=True)
        assert entry["id"] == entry["top_logprobs"][0]["id"]
        assert entry["logprob"] <= 0


def test_ignoring_the_end_of_turn(gateway: GatewayProcess) -> None:
    body = complete(gateway, TRANSCRIPTS[0]["prompt"], temperature=0, n_predict=100, ignore_eos=True)
    assert (body["tokens_predicted"], body["stop_type"]) == (100, "limit")


def test_a_conversation_with_the_real_client(gateway: GatewayProcess, client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "any", "max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    asked = {**fields, "messages": QUESTION, "extra_body": {"temperature": 0}}
    with client.messages.stream(**asked) as streamed:
        message = streamed.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[1].text == "48 - 19 = 29"
    whole = client.messages.create(**asked)
    assert [block.to_dict() for block in whole.content] == [
        {name: value for name, value in block.to_dict().items() if name != "parsed_output"} for block in message.content
    ]
    assert whole.usage.input_tokens == client.messages.count_tokens(
        model="any", messages=QUESTION, thinking=fields["thinking"]
    ).input_tokens
    turns = [*QUESTION, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "What is 12 + 5?"}]
    assert client.messages.create(**{**asked, "messages": turns}).content[-1].text.endswith("17")


def test_without_thinking(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="any", max_tokens=100, messages=QUESTION, extra_body={"temperature": 0})
    assert [block.type for block in message.content] == ["text"]
    assert message.stop_reason == "end_turn"
