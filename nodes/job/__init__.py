"""The agent is the first process of a trial's job; docs/trial-jobs.md has its protocol."""
