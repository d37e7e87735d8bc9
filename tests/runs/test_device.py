"""Arithmetic that is not emulated."""

import torch

from torchrl_glam.runs.device import KeepFloat32


def test_muon_orthogonalises_in_float32():
    """A step is U p(S) V^T, where p is the quintic five times over the scaled singular values."""
    matrix = torch.nn.Parameter(torch.zeros(16, 16))
    matrix.grad = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    given = matrix.grad.clone()
    u, s, v = torch.linalg.svd(given.double() / given.double().norm())
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    with KeepFloat32():
        torch.optim.Muon([matrix], lr=1.0, weight_decay=0.0).step()
        assert torch.ones(2).bfloat16().dtype == torch.float32
    torch.testing.assert_close(matrix.double(), -(u * s) @ v, atol=1e-4, rtol=0)
    torch.testing.assert_close(matrix.grad, given)
    assert torch.ones(2).bfloat16().dtype == torch.bfloat16
