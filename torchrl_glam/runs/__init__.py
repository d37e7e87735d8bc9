"""What a training run needs around the learning itself: checkpoints, evaluation, logs."""

try:
    import hydra  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'recipes need {error.name}: pip install -e ".[recipes]" in their repository',
        name=error.name,
    ) from None
