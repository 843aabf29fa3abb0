"""Views of a run for people and programs, such as tables, pages and reports."""
