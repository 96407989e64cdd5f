import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.toml import to_key, to_toml

VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.text(st.characters(codec="utf-8")), VALUES)
def test_what_is_written_reads_back_the_same(key: str, value: Any) -> None:
    assert tomllib.loads(f"{to_key(key)} = {to_toml(value)}") == {key: value}


def test_none_is_left_out_of_tables_and_refused_elsewhere() -> None:
    assert to_toml({"a": None, "b": 1}) == "{ b = 1 }"
    with pytest.raises(TypeError, match="NoneType"):
        to_toml([None])
