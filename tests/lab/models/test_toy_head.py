import pytest
import torch

from rankrise.heads import resolve
from rankrise.lab.models import ToyHeadConfig, build_model
from rankrise.theory import attention_head, teacher_task


def test_with_diagonal_weights_it_is_the_head_of_the_theory():
    task = teacher_task(samples=5, tokens=4, dim=3, seed=0)
    head = build_model(ToyHeadConfig(dim=3, head_dim=3)).double()
    generator = torch.Generator().manual_seed(1)
    key, query, value, out = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for module, diagonal in ((head.key, key), (head.query, query), (head.value, value), (head.out, out)):
            module.weight.copy_(torch.diag(diagonal))
    x, y = torch.as_tensor(task.x), torch.as_tensor(task.y)
    net = attention_head(x, y)
    loss = 0.5 * (head(x) - y).square().sum((1, 2)).mean()
    q = torch.cat([key * query, value * out])
    assert float(net.loss(q)) == pytest.approx(loss.item(), rel=1e-12)


def test_initial_scale_and_heads():
    small, large = (build_model(ToyHeadConfig(dim=20, head_dim=4, init_scale=s), seed=5) for s in (1e-3, 1.0))
    torch.testing.assert_close(small.key.weight, 1e-3 * large.key.weight)
    (layer,) = resolve(small).layers
    assert (layer.num_heads, layer.head_dim) == (1, 4)
