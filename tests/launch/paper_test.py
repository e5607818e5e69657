import pytest

from launch import compare
from launch import paper


def test_figures_are_the_papers():
  mnist = paper.figures('mnist', 'mlp')
  assert mnist['dble'] == {'accuracy': 0.9869, 'ece': 0.0097, 'nll': 0.12}
  assert mnist['deep_ensemble'] == {'accuracy': 0.9936, 'ece': 0.0099, 'nll': 0.08}
  cifar100 = paper.figures('cifar100', 'resnet50')
  assert cifar100['vanilla_errors'] == {'ece': 0.183, 'nll': 1.43}
  assert cifar100['dble_all'] == {'ece': 0.189, 'nll': 1.54}


def test_what_the_paper_has_not_is_empty():
  assert paper.figures('digits', 'mlp') == {}
  assert paper.figures('mnist', 'vgg11') == {}
  assert 'vanilla_errors' not in paper.figures('mnist', 'mlp')


@pytest.mark.parametrize('dataset, encoder', [
    ('mnist', 'mlp'), ('cifar10', 'vgg11'), ('cifar100', 'resnet50'),
    ('tiny_imagenet', 'resnet50')])
def test_dble_has_the_lowest_ece_and_nll_of_the_single_models_as_the_paper_says(
    dataset, encoder):
  figures = paper.figures(dataset, encoder)
  assert set(figures) <= set(compare.ROWS)
  single = {row: values for row, values in figures.items() if row != 'deep_ensemble'}
  for name in ('ece', 'nll'):
    assert min(single, key=lambda row: single[row][name]) == 'dble'


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
