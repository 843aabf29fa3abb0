"""The agent of a trial's job, the job's first process; docs/trial-jobs.md has its protocol."""
