"""JSON values of any shape, for fields of requests."""

from hypothesis import strategies as st


def json_values(*words: str) -> st.SearchStrategy[object]:
    """`words` are likely as texts and as names of fields."""
    texts = st.sampled_from(words) | st.text(max_size=3) if words else st.text(max_size=3)
    plain = st.none() | st.booleans() | st.integers(-2, 2**40) | st.floats() | texts
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
    )
