"""What a training run needs around the learning itself: checkpoints, evaluation, logs."""
