import sys
import tracemalloc

import pytest

from headrace.core.errors import InvalidPrompt, UnsupportedModel
from headrace.core.text.sandbox import limited_cpu, template_environment
from headrace.core.text.template import ChatTemplate

HI = [{"role": "user", "content": "Hi 1234567 {0:999999} %99999999d"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * ['a'] }}",
        "{% set x = 'a' * 9999 %}{{ x * 9999 }}",
        "{{ 9 ** 999999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%0*d' % (999999999, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 999999999) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a\nb' | indent(1000000000) }}",
        "{{ {'a': 1} | tojson(indent=1000000000) }}",
        "{{ range(10000000) | list }}",
        "{{ lipsum(100000) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_H03_a_template_cannot_allocate_without_bound(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((InvalidPrompt, UnsupportedModel)):
            ChatTemplate(source, {}).render(HI)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_H03_a_template_cannot_run_for_ever() -> None:
    source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template = template_environment().from_string(source)
    with pytest.raises(TimeoutError, match="takes more than"), limited_cpu(0.05):
        template.render()


def test_the_trace_of_a_debugger_comes_back() -> None:
    before = sys.gettrace()
    with pytest.raises(ValueError, match="x"), limited_cpu():
        raise ValueError("x")
    assert sys.gettrace() is before


def test_what_templates_do_with_numbers_and_texts_goes_on_working() -> None:
    source = (
        "{{ messages[0].content.strip().replace('Hi', 'Ho') }}|{{ 1700000000 * 1000 }}|{{ 'ab' * 3 }}|{{ 2 ** 10 }}|"
        "{{ '%05d' % 42 }}|{{ '{:>4}'.format('x') }}|{{ 123456789 | tojson }}|{{ 'a' | center(5) }}|"
        "{{ namespace(n=5000000).n }}|{{ 2.5 * 2 }}|{{ 7 % 4 }}|{{ 'x' | indent(2, first=true) }}"
    )
    expected = "Ho 1234567 {0:999999} %99999999d|1700000000000|ababab|1024|00042|   x|123456789|  a  |5000000|5.0|3|  x"
    assert ChatTemplate(source, {}).render(HI) == expected
