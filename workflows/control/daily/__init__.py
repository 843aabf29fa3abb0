"""The daily runs of a study: their schedule, their journal, and the work of a day.

A day is the work for one date, in one or more attempts with at most one run each. The first attempt
is for all regions. Later attempts are for regions whose data came late, and for failed regions that
are tried again.
"""
