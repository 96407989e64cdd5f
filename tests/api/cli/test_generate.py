import io
import json

import pytest

from headrace.cli.main import main
from headrace.core.text.symbols import FIRST

Capture = pytest.CaptureFixture[str]
SCRIPT = [
    *("--runner", "script", "--tokenizer", "symbols", "--max-tokens", "3"),
    *(
        "--option",
        "runner.vocab_size=512",
        "--option",
        "runner.filler=0",
        "--option",
        f"runner.tokens={[ord(letter) - FIRST for letter in 'ABC']}",
    ),
]
"""Every request is answered with ABC."""


def test_one_prompt_prints_its_text_alone(capsys: Capture) -> None:
    assert main(["generate", *SCRIPT, "--prompt", "xyz"]) == 0
    assert capsys.readouterr().out == "ABC\n"


def test_several_prompts_print_labelled_lines_that_begin_with_the_prompt(capsys: Capture) -> None:
    assert main(["generate", *SCRIPT, "--prompt", "x", "--prompt", "y"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["[1] xABC", "[2] yABC"]


def test_several_completions_of_a_prompt_have_labels_of_their_own(capsys: Capture) -> None:
    assert main(["generate", *SCRIPT, "--n", "2", "--prompt", "x"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["[1.0] xABC", "[1.1] xABC"]


def test_without_a_prompt_standard_input_is_read(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("abc"))
    assert main(["generate", *SCRIPT]) == 0
    assert capsys.readouterr().out == "ABC\n"


def test_speed_and_stages_of_loading_go_to_stderr(capsys: Capture) -> None:
    main(["generate", *SCRIPT, "--prompt", "x", "--prompt", "y"])
    err = capsys.readouterr().err
    assert "loaded in " in err
    assert "first token after " in err
    assert "6 tokens in " in err
    assert "tokens/s" in err


def test_json_prints_one_object_per_prompt_in_their_order(capsys: Capture) -> None:
    assert main(["generate", *SCRIPT, "--json", "--logprobs", "0", "--prompt", "x", "--prompt", "yz"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["prompt"], second["prompt"]) == ("x", "yz")
    assert first["completions"][0]["text"] == "ABC"
    assert first["completions"][0]["finish_reason"] == "length"
    assert len(first["completions"][0]["logprobs"]) == 3
    assert second["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "cached_tokens": 0}


def test_a_refused_prompt_is_one_line_and_code_2(capsys: Capture) -> None:
    assert main(["generate", *SCRIPT, "--prompt", ""]) == 2
    assert capsys.readouterr().err == "headrace: prompt is empty, must have at least one token\n"
