"""The daily runs of a study: their schedule, their journal, and the work of a day.

A day is the work for one date. Its first attempt is a run of all regions. Regions that failed, or
whose data came late, get further attempts.
"""
