"""The report of a run: a page for people, a JSON file for programs, and a terminal table.

reading.read_report(folder)         # looks at the run once; everything after this is pure
page.render_page(report)            # report.html: one file, no network
report.to_json()                    # report.json
summary.summary_table(report)       # what the command line prints at the end of a run
"""
