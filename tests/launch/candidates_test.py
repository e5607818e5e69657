import re

import pytest

from dble_tf import confidence_models
from launch import candidates


def test_the_default_learns_a_softplus_from_errors_per_query():
  candidate = candidates.parse('default')
  assert candidate == ('errors', 'queries', False, {})


def test_each_word_changes_one_setting():
  candidate = candidates.parse('all+per_error+log_variance+isotropic+dropout=0.25')
  assert candidate.confidence_training == 'all'
  assert candidate.normalisation == 'errors'
  assert candidate.arguments == {
      'parametrisation': 'log_variance', 'per_dimension': False, 'dropout': 0.25}


def test_it_is_built_as_described():
  model = candidates.parse('isotropic+dropout=0.25').build(6, 0.1)
  kinds = [type(layer).__name__ for layer in model.layers]
  assert kinds[:4] == ['LayerNormalization', 'Dense', 'Dropout', 'Dense']
  assert model.layers[2].rate == 0.25
  assert model.layers[3].units == 1
  assert model.layers[1].kernel_regularizer.l2 == pytest.approx(0.05)
  assert candidates.parse('weight_decay=0.02').build(
      6, 0.1).layers[1].kernel_regularizer.l2 == pytest.approx(0.01)
  raw = candidates.parse('raw_input').build(6, 0.1)
  assert type(raw.layers[0]).__name__ == 'Dense'
  log_variance = candidates.parse('log_variance').build(6, 0.1)
  assert log_variance.layers[-1].activation is confidence_models.log_variance
  assert not candidates.parse('constant').build(6, 0.1).trainable_variables


@pytest.mark.parametrize('descriptions, complaint', [
    (['defualt'], '"defualt" is no word'),
    (['errors+dropout'], '"dropout" is no word'),
    (['dropout=1.5'], 'number from 0 to below 1'),
    (['weight_decay=much'], 'number from 0 to below 1'),
    (['errors+all'], '"errors\\+all" sets confidence_training twice'),
    ([], 'at least one'),
    (['default', 'all', 'errors'], 'each confidence model once'),
    (['constant+held_out'], 'a constant sigma learns nothing'),
])
def test_what_makes_no_sense_is_named(descriptions, complaint):
  assert re.search(complaint, candidates.problem(descriptions))


def test_what_makes_sense_is_no_problem():
  assert candidates.problem(['default', 'held_out+isotropic', 'constant']) is None


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
