"""Reading the rows of CSV and Parquet files."""

from __future__ import annotations

import csv
import gzip
import re
from pathlib import Path
from typing import Literal

import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialfleet.workflows.study.table_options import NULL_VALUES, TableOptions
from trialfleet.workflows.tables.csv_rows import TableError, opened_csv
from trialfleet.workflows.tables.reading import file_format, read_rows
from trialfleet.workflows.tables.table_from_rows import build_table

ROWS = 40


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\n", "has a header and no rows"),
        (b"a,b,a\n1,2,3\n", "has several columns named 'a'"),
        (b"a,b\n1,2,3\n", "line 2 has 3 cells, the header 2"),
        (b"a;b\n1;2\n\n'x';\"2\n3\";4\n", "the row of lines 4-5 has 3 cells, the header 2; is a "),
        (b"a,b,c\n1,2,3\n1,2\n", "line 3 has 2 cells, the header 3"),
        (b'a,b,c\n\n1,2,\n"x\ny"\n', "the row of lines 4-5 has 1 cell, the header 3"),
        (b"sep=;\na;b\n1;2;3\n", "line 3 has 3 cells, the header 2"),
        (b'a,b\n1,"x \\"y, z\\""\n', "line 2 has 3 cells, the header 2; a quote within a cell is"),
        (b"x,y,z\n1,2,3\n,\n,,,", "line 3 has 2 cells, the header 3"),
        (b'a,b\n1,"2\n', "a quote that is opened in line 2 is not closed"),
        (b'a,b\n1,2\n3,"x\ny\n', "a quote that is opened in line 3 is not closed"),
        (b"\xff\xfea,b", "is not UTF-16 text: truncated data"),
        (
            b"a,b\n1,\xe9\n",
            "is not UTF-8 text: it has the byte 0xe9 in line 2, character 3; save",
        ),
        (b"a,b\n1,x\0y\n", "has a NUL byte in line 2, character 4: it is damaged, or UTF-16"),
        ("a,b\n".encode("utf-16-le"), "has a NUL byte in line 1, character 2"),
        (b"PK\x03\x04rest", "is a ZIP archive, as Excel workbooks are; save the table as CSV"),
        (b"(\xb5/\xfdrest", "is compressed by zstd; unpack it"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], "is not a complete gzip file: "),
        (
            gzip.compress(b"a,b\n1,2\n", mtime=0)[:-8] + b"12345678",
            "is not a complete gzip file: CRC",
        ),
    ],
)
def test_the_error_of_an_unreadable_csv_has_the_reason(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(TableError, match=words.replace("(", r"\(")):
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
def test_common_forms_of_csv_are_read(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    read = read_rows(tmp_path / name, file_format(name))
    assert read.to_dict(as_series=False) == {"a": ["1", "2"], "b": ["x y", None]}


def test_columns_without_a_name_are_ignored_with_the_name_that_pandas_gives_them(
    tmp_path: Path,
) -> None:
    lines = [f"{i},{'ab'[i % 2]},{i % 5},," for i in range(ROWS)]
    (tmp_path / "t.csv").write_text("\n".join([",y,n,, ", *lines]))
    _, found = build_table(read_rows(tmp_path / "t.csv", "csv"), "y", TableOptions(), 0)
    assert found.ignored == dict.fromkeys(
        ("Unnamed: 0", "Unnamed: 3", "Unnamed: 4"), "it has no name"
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('v,"price\n(EUR)",y\n1,0.5,2\n', {"v": ["1"], "price\n(EUR)": ["0.5"], "y": ["2"]}),
        ('"price\r\n(EUR)",y\r\n1,2\r\n', {"price\n(EUR)": ["1"], "y": ["2"]}),
        ('"a, b";c\n1;2\n', {"a, b": ["1"], "c": ["2"]}),
        ("p, EUR;b;c\n1,5;2;3\n", {"p, EUR": ["1,5"], "b": ["2"], "c": ["3"]}),
        ("last, first\tage\nx, y\t1\nz\t2\n", {"last, first": ["x, y", "z"], "age": ["1", "2"]}),
        ("a|b|c,d\nx,y\n", {"a|b|c": ["x"], "d": ["y"]}),
        ("sep=;\na;b\n1;x,y\n", {"a": ["1"], "b": ["x,y"]}),
        ('"sep=|"\r\na|b\r\n1|2\r\n', {"a": ["1"], "b": ["2"]}),
        ("a,b\r1,2\r3,4\r", {"a": ["1", "3"], "b": ["2", "4"]}),
        ("\n\na,b\n1,2\n \n3,4\n", {"a": ["1", "3"], "b": ["2", "4"]}),
        ('a,b\n24",3\n27" x 30",4\n', {"a": ['24"', '27" x 30"'], "b": ["3", "4"]}),
        ('a,b\n24" x,27" y\n', {"a": ['24" x'], "b": ['27" y']}),
        ('a,b\n"x ""y""",2\n', {"a": ['x "y"'], "b": ["2"]}),
        ('a,b\n"x \\"y\\"",2\n', {"a": ['x \\y\\""'], "b": ["2"]}),
        (f'a,b\n1,"{"x" * 200_000}"y\n', {"a": ["1"], "b": ["x" * 200_000 + "y"]}),
        ("a,b\n,\n\n1,\n", {"a": [None, "1"], "b": [None, None]}),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_csv_of_other_programs_is_read_as_by_pandas(
    tmp_path: Path, text: str, rows: dict[str, list[str | None]], encoding: str
) -> None:
    plain = text.encode(encoding)
    for name, content in [("t.csv", plain), ("t.csv.gz", gzip.compress(plain, mtime=0))]:
        path = tmp_path / name
        path.write_bytes(content)
        assert read_rows(path, "csv").to_dict(as_series=False) == rows
        with opened_csv(path) as opened:
            assert pl.concat(opened.frames).to_dict(as_series=False) == rows


TABLES = st.integers(2, 4).flatmap(
    lambda width: st.lists(
        st.tuples(*[st.text(st.sampled_from("ab7 ,;\t\"'\\\n|é"), max_size=5)] * width),
        min_size=1,
        max_size=8,
    )
)


@pytest.mark.slow
@given(
    TABLES,
    st.sampled_from(",;\t|"),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_any_table_that_is_written_is_read_by_both_ways(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, ...]],
    separator: str,
    line_end: str,
    quoting: Literal[0, 1],
    encoding: str,
) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    names = [f"c{number}" for number in range(len(rows[0]))]
    with path.open("w", newline="", encoding=encoding) as file:
        quoting = csv.QUOTE_ALL if line_end == "\r" else quoting  # Python forgets LF otherwise
        writer = csv.writer(file, delimiter=separator, lineterminator=line_end, quoting=quoting)
        writer.writerows([names, *rows])
    expected = [tuple(cell or None for cell in row) for row in rows]
    read = with_nulls(read_rows(path, "csv"))
    assert (read.columns, read.rows()) == (names, expected)
    with opened_csv(path) as opened:
        assert pl.concat(opened.frames).rows() == expected


@pytest.mark.slow
@given(st.lists(st.sampled_from([*'ab7 ,,;"""\\\n', "\r\n"]), max_size=30))
def test_any_text_is_read_as_pandas_reads_it_or_refused(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(f"x,y,z\n1,2,3\n{''.join(pieces)}".encode())
    try:
        read = with_nulls(read_rows(path, "csv"))
    except TableError as error:
        assert re.search(r"line (\d+)|lines \d+-\d+", str(error))  # noqa: PT017
        return
    theirs = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    rows = [tuple(cell or None for cell in row) for row in theirs.values.tolist()]
    assert [row for row in read.rows() if not is_blank(row)] == [
        row for row in rows if not is_blank(row)
    ]


def with_nulls(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.when(pl.all() != "").then(pl.all()))


def is_blank(row: tuple[str | None, ...]) -> bool:
    return not "".join(cell or "" for cell in row).strip()


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(TableError, match="is not a readable Parquet file"):
        read_rows(tmp_path / "t.parquet", "parquet")


def test_other_formats_are_refused_with_those_that_are_read() -> None:
    with pytest.raises(TableError, match=r"must be a \.csv, \.tsv, \.csv\.gz or \.parquet file"):
        file_format("rows.xlsx")
    assert TableOptions().null_values == NULL_VALUES
