import pytest

from launch.tables import paper
from launch.tables import rows


def test_figures_are_the_papers():
  mnist = paper.figures('mnist', 'mlp')
  assert mnist['dble_as_printed'] == {'accuracy': 0.9869, 'ece': 0.0097, 'nll': 0.12}
  assert mnist['deep_ensemble'] == {'accuracy': 0.9936, 'ece': 0.0099, 'nll': 0.08}
  cifar100 = paper.figures('cifar100', 'resnet50')
  assert cifar100['vanilla_errors'] == {'ece': 0.183, 'nll': 1.43}
  assert cifar100['dble_all'] == {'ece': 0.189, 'nll': 1.54}
  tiny_imagenet = paper.figures('tiny_imagenet', 'resnet50')
  assert tiny_imagenet['dble_all'] == {'ece': 0.248, 'nll': 2.87}


# Table 1 as the paper prints it.
TABLE_1 = """
vanilla 98.32 1.73 0.29 90.48 6.3 0.43 71.57 19.1 1.58 46.71 25.2 2.95
mc_dropout 98.32 1.71 0.34 90.48 3.9 0.47 71.57 9.7 1.48 46.72 17.4 3.17
vanilla+T 95.14 1.32 0.17 89.83 3.1 0.33 69.84 2.5 1.23 45.03 4.8 2.59
label_smoothing 98.77 1.68 0.30 90.71 2.7 0.38 71.92 3.3 1.39 47.19 5.6 2.93
mixup 98.83 1.74 0.24 90.59 3.3 0.37 71.85 2.9 1.44 46.89 6.8 2.66
trust_score 98.32 2.14 0.26 90.48 5.3 0.40 71.57 10.9 1.43 46.71 19.2 2.75
dble_as_printed 98.69 0.97 0.12 90.92 1.5 0.29 71.03 1.1 1.09 46.45 3.6 2.38
deep_ensemble 99.36 0.99 0.08 92.4 1.8 0.26 73.58 1.3 0.82 51.28 2.4 1.81
"""


@pytest.mark.parametrize('line', TABLE_1.split('\n')[1:-1])
def test_table_1_is_the_papers(line):
  row, *numbers = line.split()
  experiments = (('mnist', 'mlp'), ('cifar10', 'vgg11'), ('cifar100', 'resnet50'),
                 ('tiny_imagenet', 'resnet50'))
  for i, names in enumerate(experiments):
    accuracy, ece, nll = map(float, numbers[3 * i:3 * i + 3])
    assert paper.figures(*names)[row] == pytest.approx(
        {'accuracy': accuracy / 100, 'ece': ece / 100, 'nll': nll})


@pytest.mark.parametrize('dataset', ['cifar100', 'tiny_imagenet'])
def test_figures_of_resnet_50_are_shown_for_the_thin_resnet_too(dataset):
  figures = paper.figures(dataset, 'thin_resnet')
  assert figures == paper.figures(dataset, 'resnet50') and figures


def test_what_the_paper_does_not_report_is_empty():
  assert paper.figures('digits', 'mlp') == {}
  assert paper.figures('mnist', 'vgg11') == {}
  assert 'vanilla_errors' not in paper.figures('mnist', 'mlp')


@pytest.mark.parametrize('dataset, encoder', [
    ('mnist', 'mlp'), ('cifar10', 'vgg11'), ('cifar100', 'resnet50'),
    ('tiny_imagenet', 'resnet50')])
def test_dble_has_the_lowest_ece_and_nll_of_the_single_models_as_the_paper_says(
    dataset, encoder):
  figures = paper.figures(dataset, encoder)
  assert set(figures) <= set(rows.LINES)
  single = {row: values for row, values in figures.items()
            if row != 'deep_ensemble'}
  for name in ('ece', 'nll'):
    assert min(single, key=lambda row: single[row][name]) == 'dble_as_printed'
