"""Records of a run: metrics by step, statistics of episodes, what the run was."""
