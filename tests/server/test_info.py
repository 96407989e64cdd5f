"""Models, tokenizing, health, version."""

from importlib.metadata import version

import pytest
from engines import kvhash
from servers import serving


def test_every_served_name_may_be_asked_for_and_the_first_one_answers():
    with serving(model_names=("big", "small")) as server:
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["big", "small"]
        assert server.get("/v1/models/small").json()["max_model_len"] == 1024
        for name in ("big", "small", None):
            answer = server.post("/v1/completions", {"model": name, "prompt": "Hello"})
            assert (answer.status, answer.json()["model"]) == (200, "big")
        assert server.post("/v1/completions", {"model": "other", "prompt": "Hello"}).status == 404


def test_text_becomes_ids_and_the_other_way_round(server):
    told = server.post("/tokenize", {"prompt": "Hey", "return_token_strs": True}).json()
    assert told == {"count": 3, "max_model_len": 1024, "tokens": [40, 69, 89], "token_strs": ["H", "e", "y"]}
    assert server.post("/detokenize", {"tokens": told["tokens"]}).json() == {"prompt": "Hey"}


def test_messages_are_tokenized_through_the_template(server):
    told = server.post("/tokenize", {"messages": [{"role": "user", "content": "Hey"}]}).json()
    assert (told["tokens"], told["token_strs"]) == ([40, 69, 89], None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/tokenize", {"prompt": "€uro sign 😀"}),
        ("/tokenize", {"messages": 5}),
        ("/detokenize", {"tokens": [512]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {}),
    ],
)
def test_what_can_not_be_tokenized_is_refused(server, path, body):
    assert server.post(path, body).status == 400


def test_an_idle_engine_is_healthy(server):
    answer = server.get("/health")
    assert answer.status == 200
    assert answer.json() == {"status": "ok", "ready_age_s": 0, "step_age_s": 0, "reason": None}


def test_a_paused_engine_with_waiting_requests_is_healthy():
    with serving(kvhash(), stall_limit_s=0.001) as server:
        server.run(server.engine.pause("keep"))
        connection = server.send("/v1/completions", {"prompt": "Hello"})
        server.wait_open(1)
        assert server.get("/health").json()["ready_age_s"] == 0
        connection.close()
        server.wait_open(0)


def test_an_engine_without_progress_for_longer_than_allowed_is_unhealthy():
    with serving(kvhash(max_model_len=120_000, num_kv_blocks=8192), stall_limit_s=0) as server:
        assert server.get("/health").status == 200
        body = {"prompt": "Hello", "max_tokens": 100_000, "ignore_eos": True}
        connection = server.send("/v1/completions", body)
        server.wait_open(1)
        answer = server.get("/health")
        assert (answer.status, answer.json()["status"]) == (503, "stalled")
        assert "--stall-limit" in answer.json()["reason"]
        connection.close()
        server.wait_open(0)


def test_an_engine_that_does_not_answer_in_time_is_unhealthy():
    with serving(health_timeout_s=0) as server:
        answer = server.get("/health")
        assert (answer.status, answer.json()["status"]) == (503, "silent")
        assert server.post("/v1/completions", {"prompt": "Hello"}).status == 200


def test_the_version_is_told(server):
    assert server.get("/version").json() == {"version": version("headrace")}


def test_unknown_paths_and_methods_are_refused_in_the_same_shape(server):
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)):
        answer = server.request(method, path)
        assert (answer.status, bool(answer.error()["message"])) == (status, True)
