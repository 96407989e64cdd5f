"""/metrics: what is counted, and that it adds up."""

from engines import kvhash, script
from prometheus_client.parser import text_string_to_metric_families
from servers import serving

from headrace.runners.kvhash import reference

GREEDY = {"temperature": 0, "ignore_eos": True}


def read(server):
    """Return every sample by name, summed over labels but for the reason of an end."""
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason")
            found[f"{sample.name}/{reason}" if reason else sample.name] = sample.value
    return {name.removeprefix("headrace:"): value for name, value in found.items()}


def test_K04_prompt_tokens_are_counted_once_each():
    with serving() as server:
        for num_tokens in (5, 17, 100):
            server.post("/v1/completions", {**GREEDY, "prompt": [1] * num_tokens, "max_tokens": 2})
        read_now = read(server)
        assert read_now["prompt_tokens_total"] == 122
        assert read_now["generation_tokens_total"] == 6
        assert read_now["request_prompt_tokens_sum"] == 122
        assert read_now["request_generation_tokens_sum"] == 6
        assert read_now["request_success_total/length"] == 3
        assert min(read_now.values()) >= 0


def test_K04_each_of_n_choices_counts_as_one():
    with serving() as server:
        server.post("/v1/completions", {**GREEDY, "prompt": "Hello", "max_tokens": 2, "n": 3})
        read_now = read(server)
        assert read_now["request_success_total/length"] == 3
        assert read_now["time_to_first_token_seconds_count"] == 3
        assert (read_now["request_params_n_count"], read_now["request_params_n_sum"]) == (1, 3)


def test_K02_every_end_is_counted_by_its_reason():
    stop = reference([40], 8)[3]
    with serving(kvhash(max_model_len=120_000, num_kv_blocks=8192)) as server:
        for _ in range(5):
            server.post("/v1/completions", {**GREEDY, "prompt": "Hello", "max_tokens": 3})
        for _ in range(3):
            server.post("/v1/completions", {**GREEDY, "prompt": [40], "max_tokens": 9, "stop_token_ids": [stop]})
        for _ in range(4):
            body = {**GREEDY, "prompt": "Hello", "max_tokens": 100_000, "stream": True}
            with server.send("/v1/completions", body) as connection:
                connection.recv(1)
            server.wait_open(0)
        server.run(server.engine.pause("keep"))
        for _ in range(2):
            connection = server.send("/v1/completions", {**GREEDY, "prompt": "Hello"})
            server.wait_open(1)
            connection.close()
            server.wait_open(0)
        server.run(server.engine.resume())
        server.check_idle()
        read_now = read(server)
        assert {reason: read_now[f"request_success_total/{reason}"] for reason in ("length", "stop", "abort")} == {
            "length": 5,
            "stop": 3,
            "abort": 6,
        }
        assert read_now["time_to_first_token_seconds_count"] == 12
        assert read_now["num_requests_running"] == read_now["num_requests_waiting"] == 0
        assert read_now["kv_cache_usage_perc"] == read_now["http_requests_open"] == 0


def test_K02_an_error_is_an_end_too():
    with serving(script([1, 2, 3], faults=[{"kind": "raise", "index": 0}])) as server:
        server.post("/v1/completions", {"prompt": "Hello"})
        read_now = read(server)
        assert read_now["request_success_total/error"] == 1
        assert read_now["time_to_first_token_seconds_count"] == 0


def test_K01_recomputing_after_a_preemption_is_no_cache_hit():
    with serving(kvhash(num_kv_blocks=12, max_num_batched_tokens=32)) as server:
        prompts = [[i, *range(40)] for i in range(100, 108)]
        server.post("/v1/completions", {**GREEDY, "prompt": prompts, "max_tokens": 60})
        read_now = read(server)
        assert read_now["num_preemptions_total"] > 0
        assert read_now["prefix_cache_hits_total"] == 0
        assert read_now["prompt_tokens_total"] == 8 * 41


def test_metrics_of_a_silent_engine_are_those_of_the_server():
    with serving(health_timeout_s=0) as server:
        read_now = read(server)
        assert "prompt_tokens_total" not in read_now
        assert read_now["http_requests_open"] == 0


def test_drafts_are_counted_under_the_names_of_vllm():
    options = {"runner": {"vocab_size": 3}, "tokenizer": {"vocab_size": 3}}
    with serving(kvhash(num_speculative_tokens=3, options=options)) as server:
        server.post("/v1/completions", {**GREEDY, "prompt": [0, 1, 2] * 4, "max_tokens": 60})
        read_now = read(server)
    proposed, accepted = (read_now[f"spec_decode_num_{kind}_tokens_total"] for kind in ("draft", "accepted"))
    assert 0 < accepted < proposed <= 3 * read_now["spec_decode_num_drafts_total"]
    assert "spec_decode_num_accepted_tokens_per_pos_total" in read_now
