"""The daily runs of a study: their schedule, their journal, and the work of a day.

A day is the work for one date. It has one or more attempts. Each attempt has at most one run. The
first attempt is for all regions. Later attempts are for regions with late data, and for failed
regions.
"""
