"""The agent of a gang's jobs. A gang is one training that runs in several HTCondor jobs."""
