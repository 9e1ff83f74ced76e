"""Any text of rows is the same rows."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.scenarios.formats.row import RowError
from gavel.scenarios.formats.text import decode, rows

ROWS = [{"messages": [{"role": "user", "content": "Wo ist mein Paket? “ü” 包"}], "n": 1}, {"messages": [], "n": 2}]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)


def values(text: str) -> list[Any]:
    return [row.value for row in rows(text, "f")]


LAYOUTS = [
    LINES,
    LINES + "\n",
    "\n\n" + LINES.replace("\n", "\n  \n\n"),
    LINES.replace("\n", "\r\n") + "\r\n",
    "\n".join(json.dumps(json.dumps(row)) for row in ROWS),
    json.dumps(ROWS),
    json.dumps(ROWS, indent=2),
    "\n".join(json.dumps(row, indent=2) for row in ROWS),
    json.dumps({"data": ROWS, "meta": {"page": 1, "totalPages": 1}}),
    json.dumps({name: {"3": ROWS[0][name], "12": ROWS[1][name]} for name in ROWS[0]}),
    json.dumps({"0": ROWS[0], "1": ROWS[1]}),
    json.dumps({"columns": ["messages", "n"], "index": [3, 12], "data": [list(row.values()) for row in ROWS]}),
    json.dumps({"schema": {"fields": []}, "data": ROWS}),
    json.dumps({"rows": [{"row_idx": n, "row": row, "truncated_cells": []} for n, row in enumerate(ROWS)]}),
]
BROKEN = ['Q,"a" b\nQ,c\n', 'Q,"he said\nQ,third\n', 'Q,whole\nQ,"half of a ce']
ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]


@pytest.mark.parametrize(
    ("text", "encoding"), [*((text, "utf-8") for text in LAYOUTS), *((LINES, encoding) for encoding in ENCODINGS)]
)
def test_a_text_of_rows_is_read_in_any_layout_and_encoding(text: str, encoding: str) -> None:
    assert values(decode(text.encode(encoding), "f")) == ROWS


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (LINES + '\n{"messages": [', r"f:3 is no JSON value"),
        ('{"a": 1}\n{"b": }\n{"c": 3}', r"f:2 is no JSON value"),
        ('{"a": \n{"b": 2}\n{"c": 3}', r"f:1 is no JSON value"),
        ('[\n  {"a": 1},\n  {"b": }\n]', r"f:3 is no JSON value"),
        ("hello", r"f:1 is no JSON value"),
        ('<meta content="a, b">\n<p>1</p>\n', "(?s)f:1 .*Parquet"),
        ("| prompt | completion |\n|---|---|\n| a | b |\n", "(?s)f:1 .*Parquet"),
        ("{'messages': [], 'done': True}\n{'messages': []}\n", r"(?s)f:1 .*json\.dumps"),
        ('{"a": 1}\n{"a": True}\n', r"(?s)f:2 .*json\.dumps"),
        ('# two rows\n{"a": 1}\n', "(?s)f:1 .*delete this line"),
        ("a,b\n1,2\n3", r"f:3 has 1 cells"),
        ("a,a\n1,2", r"f:1 has columns without a name or twice"),
        *((f"prompt,response\n{cells}", "f:[23] is no row of a table") for cells in BROKEN),
        ('{"a": 1}\n\n{"a": 2, "b": {"c": 1, "c": 1}}\n', 'f:3 has the key "c" twice'),
        ('[{"c": 1},\n {"a": 2,\n  "c": 1, "c": 3}]', 'f:3 has the key "c" twice'),
        ('{\n"a": 1}\n\n{\n"c": 1,\n"c": 2\n}\n', 'f:6 has the key "c" twice'),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line_and_a_remedy_of_its_kind(text: str, problem: str) -> None:
    with pytest.raises(RowError, match=problem):
        rows(text, "f")
    with pytest.raises(RowError, match=r"f:2 is no UTF-8 text"):
        decode(b'{"a": 1}\n{"b": "\xe9"}', "f")


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_table_is_read_with_quotes_line_breaks_and_lists_in_cells(delimiter: str, newline: str) -> None:
    text = newline.join(
        [
            delimiter.join(["prompt", "completion", "messages"]),
            delimiter.join(["2 + 2?", '"4,\n""exactly"";\t"', '"[{""role"": ""user""}]"']),
            "",
            delimiter.join(["3?", "[sic]", "\"[{'role': 'user', 'name': None}]\""]),
        ]
    )
    assert values(text) == [
        {"prompt": "2 + 2?", "completion": '4,\n"exactly";\t', "messages": [{"role": "user"}]},
        {"prompt": "3?", "completion": "[sic]", "messages": [{"role": "user", "name": None}]},
    ]


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.none() | st.integers() | st.text()), min_size=2))
@settings(max_examples=100, deadline=None)
def test_rows_survive_lines_and_arrays(found: list[Any]) -> None:
    assert values("\n".join(map(json.dumps, found))) == found
    assert values(json.dumps(found, indent=1)) == found
