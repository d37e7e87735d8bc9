"""SAC-GLAM (Gaven et al., 2024) as components for TorchRL.

The parts live in the subpackages ``envs``, ``goals``, ``models``, ``objectives``, ``pretraining``,
``replay``, ``report``, ``runs``, ``text`` and ``viewing``; importing this package loads none.
"""

__version__ = "0.1.0"
