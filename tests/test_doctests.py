"""Every example in a docstring of the package runs and shows what it says.

pytest's own ``--doctest-modules`` names modules after their folders and would import ``envs/`` a
second time, as ``envs`` instead of ``torchrl_glam.envs``.
"""

import doctest
import importlib
import pkgutil

import pytest

import torchrl_glam
import torchrl_glam.envs

# Where there are no links, envs/ lies outside the folder of torchrl_glam.
PACKAGES = (torchrl_glam, torchrl_glam.envs)
MODULES = sorted(
    {
        name
        for package in PACKAGES
        for name in (
            package.__name__,
            *(m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")),
        )
    }
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples failed, see above"
