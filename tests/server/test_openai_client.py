"""Every endpoint through the official client: synchronous, asynchronous, streamed, many at once."""

import asyncio

import openai
import pytest

from headrace.core.text.symbols import FIRST
from headrace.runners.kvhash import reference

GREEDY = {"model": "headrace", "temperature": 0}


def text_of(prompt: str, num_tokens: int) -> str:
    """What kvhash says to a prompt."""
    ids = reference([ord(character) - FIRST for character in prompt], num_tokens)
    return "".join(chr(FIRST + token_id) for token_id in ids)


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def test_a_completion_carries_text_reason_and_usage(client):
    answer = client.completions.create(**GREEDY, prompt="Hello", max_tokens=8)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == text_of("Hello", 8)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 8, 13)


def test_a_streamed_completion_equals_the_whole_one(client):
    chunks = list(client.completions.create(**GREEDY, prompt="Hello", max_tokens=8, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text_of("Hello", 8)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_a_chat_answers_as_the_assistant(client):
    messages = [{"role": "user", "content": "Hi"}]
    answer = client.chat.completions.create(**GREEDY, messages=messages, max_completion_tokens=5)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == text_of("Hi", 5)


def test_the_clients_own_stream_helper_gathers_a_chat(client):
    messages = [{"role": "user", "content": "Hi"}]
    with client.chat.completions.stream(**GREEDY, messages=messages, max_tokens=6, n=2) as stream:
        stream.until_done()
        answer = stream.current_completion_snapshot
    assert [choice.message.content for choice in answer.choices] == [text_of("Hi", 6)] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 2


def test_models_are_listed_and_told_by_name(client):
    assert [model.id for model in client.models.list()] == ["headrace"]
    assert client.models.retrieve("headrace").owned_by == "headrace"
    with pytest.raises(openai.NotFoundError, match="served is headrace"):
        client.models.retrieve("gpt-4")


def test_errors_arrive_as_the_clients_own_classes(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="headrace", prompt="Hello", temperature=-1)
    assert (raised.value.param, raised.value.code) == ("temperature", "invalid_parameter")
    with pytest.raises(openai.NotFoundError) as raised:
        client.completions.create(model="gpt-4", prompt="Hello")
    assert (raised.value.param, raised.value.code) == ("model", "model_not_found")


def test_extra_fields_of_vllm_users_arrive_at_the_engine(client):
    extra = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 3, "priority": 2}
    extra |= {"cache_salt": "a", "allowed_token_ids": [40], "policy_args": {"tenant": "a"}}
    answer = client.completions.create(**GREEDY, prompt="Hello", max_tokens=3, extra_body=extra)
    assert answer.choices[0].text == chr(FIRST + 40) * 3


def test_sixty_four_at_once_each_get_their_own_text(server):
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        prompt = f"prompt {number}"
        if number % 2:
            answer = await client.completions.create(**GREEDY, prompt=prompt, max_tokens=16)
            return answer.choices[0].text
        stream = await client.completions.create(**GREEDY, prompt=prompt, max_tokens=16, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all() -> list[str]:
        async with server.async_client() as client:
            return await asyncio.gather(*(ask(client, number) for number in range(64)))

    assert asyncio.run(ask_all()) == [text_of(f"prompt {number}", 16) for number in range(64)]
