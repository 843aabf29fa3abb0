"""The report of a run: a page for people, a JSON file for programs, and a terminal table.

`reading` makes a `Report` from one snapshot of the run. The page and the tables use only the
`Report`.
"""
