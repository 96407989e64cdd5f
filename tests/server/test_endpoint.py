"""The door, and clients that go away."""

import pytest
from engines import kvhash
from servers import serving

LONG = {"prompt": "Hello", "max_tokens": 100_000, "ignore_eos": True, "temperature": 0}
CHAT = {**LONG, "messages": [{"role": "user", "content": "Hi"}]}
SHAPES = {
    "stream": ("/v1/completions", {**LONG, "stream": True}, 1, 1),
    "whole": ("/v1/completions", LONG, 1, 1),
    "n=4": ("/v1/completions", {**LONG, "n": 4, "stream": True}, 1, 4),
    "list": ("/v1/completions", {**LONG, "prompt": ["a", "b", "c"]}, 3, 3),
    "chat": ("/v1/chat/completions", {**CHAT, "stream": True}, 1, 1),
}
by_shape = pytest.mark.parametrize(("path", "body", "num_prompts", "num_choices"), SHAPES.values(), ids=SHAPES)


@by_shape
def test_E01_a_client_gone_before_the_first_byte_aborts_all_choices(endless, path, body, num_prompts, num_choices):
    aborted = endless.finished()["abort"]
    endless.run(endless.engine.pause("keep"))
    connection = endless.send(path, body)
    endless.wait_open(num_prompts)
    connection.close()
    endless.wait_open(0)
    endless.run(endless.engine.resume())
    endless.check_idle()
    assert endless.finished()["abort"] == aborted + num_choices


@pytest.mark.parametrize("name", ["stream", "n=4", "chat"])
def test_E01_a_client_gone_in_mid_stream_aborts_all_choices(endless, name):
    path, body, _, num_choices = SHAPES[name]
    aborted = endless.finished()["abort"]
    with endless.send(path, body) as connection:
        assert connection.recv(1) == b"H"
        assert endless.engine.num_open() == 1
    endless.wait_open(0)
    endless.check_idle()
    assert endless.finished()["abort"] == aborted + num_choices


def test_E01_fifty_clients_gone_at_once_leave_nothing(endless):
    aborted = endless.finished()["abort"]
    connections = [endless.send("/v1/completions", {**LONG, "stream": bool(i % 2)}) for i in range(50)]
    endless.wait_open(50)
    for connection in connections:
        connection.close()
    endless.wait_open(0)
    endless.check_idle()
    assert endless.finished()["abort"] == aborted + 50


def test_B08_two_requests_with_the_same_id_each_get_their_own_text_and_the_id_back(server):
    texts = []
    for prompt in ("Hello", "World"):
        answer = server.post("/v1/completions", {"prompt": prompt, "temperature": 0}, **{"X-Request-Id": "same"})
        assert answer.headers["x-request-id"] == "same"
        texts.append((answer.json()["id"], answer.json()["choices"][0]["text"]))
    assert texts[0][0] != texts[1][0]
    assert texts[0][1] != texts[1][1]


def test_requests_without_a_known_key_are_refused():
    with serving(api_keys=("first", "second")) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "second"}):
            for path in ("/v1/completions", "/tokenize"):
                answer = server.post(path, {"prompt": "Hello"}, **headers)
                assert answer.status == 401
                assert answer.error()["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        assert server.get("/v1/models").status == 401
        assert server.get("/v1/models", Authorization="Bearer second").status == 200
        assert [server.get(path).status for path in ("/health", "/metrics", "/version", "/docs")] == [200] * 4


def test_requests_past_the_limit_get_429_and_later_ones_are_served():
    with serving(kvhash(max_model_len=120_000, num_kv_blocks=8192), max_open_requests=2) as server:
        connections = [server.send("/v1/completions", LONG) for _ in range(2)]
        server.wait_open(2)
        refused = server.post("/v1/completions", LONG)
        assert refused.status == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.error()["type"] == "rate_limit_error"
        assert server.get("/health").status == 200
        for connection in connections:
            connection.close()
        server.wait_open(0)
        assert server.post("/v1/completions", {"prompt": "Hello"}).status == 200


def test_a_full_queue_gets_503():
    with serving(kvhash(max_queued_requests=2)) as server:
        refused = server.post("/v1/completions", {"prompt": ["a", "b", "c"]})
        assert refused.status == 503
        assert refused.error()["code"] == "queue_full"
        assert server.post("/v1/completions", {"prompt": ["a", "b"]}).status == 200


def test_origins_are_let_in_only_when_named():
    with serving(allow_origins=("https://a.example",), api_keys=("key",)) as server:
        asked = {"Access-Control-Request-Method": "POST"}
        allowed = server.request("OPTIONS", "/v1/completions", None, {"Origin": "https://a.example", **asked})
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        other = server.request("OPTIONS", "/v1/completions", None, {"Origin": "https://b.example", **asked})
        assert "access-control-allow-origin" not in other.headers


def test_no_origin_is_let_in_by_default(server):
    assert "access-control-allow-origin" not in server.get("/v1/models", Origin="https://a.example").headers
