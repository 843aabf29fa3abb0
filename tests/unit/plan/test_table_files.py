"""Reading the rows of CSV and Parquet files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from trialfleet.workflows.study.table_options import NULL_VALUES, TableOptions
from trialfleet.workflows.tables.building import build_table
from trialfleet.workflows.tables.reading import UnreadableTableError, format_of, read_rows

ROWS = 40


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\n", "has a header and no rows"),
        (b"a,b,a\n1,2,3\n", "has several columns called 'a'"),
        (b"a,b\n1,2,3\n", "line 2 has 3 cells, the header 2"),
        (b"a;b\n1;2\n\n'x';\"2\n3\";4\n", "line 5 has 3 cells, the header 2"),
        (b"a,b,c\n1,2,3\n1,2\n", "line 3 has 2 cells, the header 3"),
        (b'a,b,c\n\n1,2,\n"x\ny"\n', "line 5 has 1 cell, the header 3"),
        (b'a,b\n1,"2\n', "a quote that is opened is not closed"),
        (b"\xff\xfea,b\n", "is no text in UTF-8: it has the byte 0xff"),
        (b"a,b\n1,\xe9\n", "is no text in UTF-8"),
        (b"a,b\r1,2\r3,4\r", "ends its lines as old Macs did"),
    ],
)
def test_a_csv_that_cant_be_read_is_told_why(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UnreadableTableError, match=words.replace("(", r"\(")):
        read_rows(tmp_path / "t.csv", "csv")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"a,b\n1,x y\n2,\n"),
        ("t.csv", b'\xef\xbb\xbf"a",b\r\n1,x y\r\n2,\r\n\r\n'),
        ("t.csv.gz", gzip.compress(b"a,b\n1,x y\n2,\n", mtime=0)),
        ("t.tsv", b"a\tb\n1\tx y\n2\t\n"),
        ("T.CSV", b"a;b\n1;x y\n2;\n"),
    ],
)
def test_csv_in_its_common_forms(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    read = read_rows(tmp_path / name, format_of(name))
    assert read.to_dict(as_series=False) == {"a": ["1", "2"], "b": ["x y", None]}


def test_a_column_without_a_name_is_that_of_pandas_and_ignored(tmp_path: Path) -> None:
    lines = [f"{i},{'ab'[i % 2]},{i % 5}" for i in range(ROWS)]
    (tmp_path / "t.csv").write_text("\n".join([",y,n", *lines]))
    _, found = build_table(read_rows(tmp_path / "t.csv", "csv"), "y", TableOptions(), 0)
    assert found.ignored == {"": "it has no name"}


def test_what_is_no_parquet_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(UnreadableTableError, match="is no Parquet file that can be read"):
        read_rows(tmp_path / "t.parquet", "parquet")


def test_other_formats_are_refused_with_those_that_are_read() -> None:
    with pytest.raises(UnreadableTableError, match=r"reads \.csv, \.tsv, \.csv\.gz, \.parquet"):
        format_of("rows.xlsx")
    assert TableOptions().null_values == NULL_VALUES
