"""The report of a run, as a page for people, a JSON file for programs and a terminal table.

`report_reader` reads facts from one snapshot of the run, and `report_numbers` makes a `Report` of
them. The page and the tables use only the `Report`.
"""
