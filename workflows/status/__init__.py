"""Where a run stands: the study's word, the job queue's and DAGMan's, joined."""
