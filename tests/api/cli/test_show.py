import io

from headrace.cli.show import ShowLines, ShowOne


def test_one_text_is_written_as_it_comes() -> None:
    out = io.StringIO()
    show = ShowOne(out)
    show.add("", "Hel")
    assert out.getvalue() == "Hel"
    show.add("", "lo")
    show.end("")
    assert out.getvalue() == "Hello\n"


def test_lines_of_several_texts_carry_their_labels_and_are_never_mixed() -> None:
    out = io.StringIO()
    show = ShowLines(out, width=80)
    show.add("[1]", "one\ntw")
    show.add("[2]", "uno\n\nd")
    show.add("[1]", "o")
    show.end("[1]")
    show.end("[2]")
    assert out.getvalue() == "[1] one\n[2] uno\n[2] \n[1] two\n[2] d\n"


def test_a_long_line_is_broken_at_a_space() -> None:
    out = io.StringIO()
    show = ShowLines(out, width=24)
    show.add("[1]", "aaaa bbbb cccc dddd eeee")
    assert out.getvalue() == "[1] aaaa bbbb cccc dddd\n"
    show.end("[1]")
    assert out.getvalue() == "[1] aaaa bbbb cccc dddd\n[1] eeee\n"


def test_a_word_longer_than_the_terminal_is_cut() -> None:
    out = io.StringIO()
    show = ShowLines(out, width=24)
    show.add("[1]", "x" * 45)
    show.end("[1]")
    assert out.getvalue() == f"[1] {'x' * 20}\n[1] {'x' * 20}\n[1] {'x' * 5}\n"


def test_an_empty_text_writes_nothing() -> None:
    out = io.StringIO()
    ShowLines(out, width=24).end("[1]")
    assert out.getvalue() == ""
