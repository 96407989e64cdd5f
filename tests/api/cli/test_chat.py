import signal
import subprocess
import sys
from pathlib import Path

from headrace.core.text.symbols import FIRST

SCRIPT = ["--runner", "script", "--option", "runner.vocab_size=512", "--option", "runner.filler=0"]
SIM = ["--runner", "sim", "--option", "runner.vocab_size=512", "--option", "runner.base_s=0.01"]


def says(text: str) -> str:
    return f"runner.tokens={[ord(letter) - FIRST for letter in text]}"


def start(*options: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).parent / "headrace"), "chat", "--tokenizer", "symbols", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)


def talk(*lines: str, options: list[str]) -> tuple[str, str]:
    with start(*options) as chat:
        out, err = chat.communicate("".join(f"{line}\n" for line in lines), timeout=60)
    assert chat.returncode == 0, err
    return out, err


def test_each_line_is_answered_until_the_input_ends() -> None:
    out, _ = talk("ab", "cd", options=[*SCRIPT, "--max-tokens", "2", "--option", says("AB")])
    assert out == "> AB\n> AB\n> "


def test_exit_leaves_and_unknown_commands_are_told() -> None:
    out, err = talk("/help", "/exit", "never", options=[*SCRIPT, "--max-tokens", "1"])
    assert out == "> > "
    assert "unknown command /help" in err


def test_the_conversation_grows_until_reset() -> None:
    """Room for 8 tokens: the first question fits, with its answer and the second it does not, after a reset it does."""
    limits = ["--max-model-len", "8", "--max-tokens", "3", "--option", says("ABC")]
    out, err = talk("abc", "de", "/reset", "abc", options=[*SCRIPT, *limits])
    assert out == "> ABC\n> \n> > ABC\n> "
    assert err.count("headrace: prompt has 8 tokens") == 1


def test_a_system_message_opens_the_conversation() -> None:
    limits = ["--max-model-len", "8", "--max-tokens", "3", "--system", "abcde"]
    _, err = talk("abc", options=[*SCRIPT, *limits])
    assert "headrace: prompt has 8 tokens" in err


def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    with start(*SIM, "--max-tokens", "100000", "--max-model-len", "200000", "--num-kv-blocks", "20000") as chat:
        assert chat.stdin and chat.stdout
        chat.stdin.write("ab\n")
        assert len(chat.stdout.read(5)) == 5  # the prompt sign and three characters: the answer is under way
        chat.send_signal(signal.SIGINT)
        out, err = chat.communicate("/exit\n", timeout=60)
    assert chat.returncode == 0, err
    assert out.endswith("\n> ")
    assert "Traceback" not in err


def test_ctrl_c_at_the_prompt_leaves() -> None:
    with start(*SCRIPT) as chat:
        assert chat.stdout
        assert chat.stdout.read(2) == "> "
        chat.send_signal(signal.SIGINT)
        _, err = chat.communicate(timeout=60)
    assert chat.returncode == 0, err
