import pathlib

import pytest
from absl import flags

from launch.cli import flagfiles

LAUNCH = pathlib.Path(flagfiles.__file__).parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_experiments_are_the_flag_files_of_the_package():
  assert flagfiles.experiments() == [
      'cifar10', 'cifar100', 'cifar10_10000', 'cifar10_20_epochs', 'digits', 'mnist',
      'mnist_2000', 'tiny_imagenet']


@pytest.mark.parametrize('name', ['cifar10', 'cifar10.flags', 'launch/cifar10.flags'])
def test_an_experiment_is_found_by_name_from_any_directory(name):
  assert flagfiles.find(name) == LAUNCH / 'cifar10.flags'


def test_a_path_comes_first(elsewhere):
  (elsewhere / 'cifar10.flags').write_text('--seed=1')
  assert flagfiles.find('cifar10.flags').read_text() == '--seed=1'


def test_a_directory_of_that_name_is_no_flag_file(elsewhere):
  (elsewhere / 'cifar10').mkdir()
  assert flagfiles.find('cifar10') == LAUNCH / 'cifar10.flags'


@pytest.mark.parametrize('name', [
    'cifar', 'mine/cifar10.flags', '../launch/digits', ''])
def test_other_names_are_refused_with_the_experiments_there_are(name):
  with pytest.raises(flags.Error, match='cifar10, cifar100, .*tiny_imagenet'):
    flagfiles.find(name)


def test_lines_take_the_place_of_their_file(elsewhere):
  (elsewhere / 'mine').write_text(
      '# A comment.\n\n  --seed=1  \n// Another.\n--experiment=a b\n')
  expected = ['--epochs=2', '--seed=1', '--experiment=a b', '--num_shots=3']
  for given in (['--flagfile=mine'], ['--flagfile', 'mine'], ['-flagfile=mine']):
    assert flagfiles.expand(['--epochs=2', *given, '--num_shots=3']) == expected


def test_files_may_include_others_by_name(elsewhere):
  expanded = flagfiles.expand(['--flagfile=cifar10_20_epochs'])
  whole = flagfiles.expand(['--flagfile=cifar10_10000'])
  assert expanded[:len(whole)] == whole and '--train_size=45000' in expanded


def test_a_file_that_includes_itself_is_refused(elsewhere):
  (elsewhere / 'a').write_text('--flagfile=b')
  (elsewhere / 'b').write_text('--flagfile=a')
  with pytest.raises(flags.Error, match='a includes itself'):
    flagfiles.expand(['--flagfile=a'])


def test_a_file_that_is_no_text_is_refused(elsewhere):
  (elsewhere / 'picture').write_bytes(b'\x89PNG\xff')
  with pytest.raises(flags.Error, match='picture cannot be read'):
    flagfiles.expand(['--flagfile=picture'])


def test_arguments_behind_two_dashes_are_left_alone():
  assert flagfiles.expand(['--', '--flagfile=x']) == ['--', '--flagfile=x']
