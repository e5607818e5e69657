import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from dble_tf.errors import UserError
from dble_tf.serving import thresholds
from dble_tf.serving.thresholds import Target

CONFIDENCE = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
IS_CORRECT = np.array([True, True, False, True, False])


@pytest.mark.parametrize('risk, expected', [
    # (errors + 1) / (accepted + 1) down to each: 1/2, 1/3, 2/4, 2/5, 3/6.
    (0.5, 0.0), (0.45, 0.55), (0.4, 0.55), (0.39, 0.75), (0.34, 0.75)])
def test_a_risk_is_held_even_if_one_more_answer_were_wrong(risk, expected):
  threshold = thresholds.threshold(Target(risk=risk), IS_CORRECT, CONFIDENCE)
  assert threshold == pytest.approx(expected)


def test_where_no_threshold_holds_the_risk_nothing_is_accepted():
  threshold = thresholds.threshold(Target(risk=0.3), IS_CORRECT, CONFIDENCE)
  assert threshold == thresholds.NOTHING > 1
  assert thresholds.judge(threshold, IS_CORRECT, CONFIDENCE) == {
      'risk': None, 'coverage': 0.0, 'images': 5}


def test_a_small_risk_takes_many_correct_answers():
  for count, is_held in ((98, False), (99, True)):
    threshold = thresholds.threshold(
        Target(risk=0.01), np.ones(count, bool), np.linspace(0.5, 1, count))
    assert (threshold == 0) == is_held


@pytest.mark.parametrize('coverage, expected', [
    (0.2, 0.85), (0.21, 0.75), (0.4, 0.75), (0.6, 0.65), (0.8, 0.55), (0.9, 0.0),
    (1.0, 0.0)])
def test_at_least_the_coverage_is_accepted(coverage, expected):
  threshold = thresholds.threshold(Target(coverage=coverage), IS_CORRECT, CONFIDENCE)
  assert threshold == pytest.approx(expected)


def test_rounding_errors_in_a_coverage_do_not_add_an_image():
  # 0.07 * 100 is 7.000000000000001 in floating point.
  threshold = thresholds.threshold(
      Target(coverage=0.07), np.ones(100, bool), np.arange(100) / 100)
  assert threshold == pytest.approx(0.925)


def test_equal_confidences_are_accepted_together():
  confidence = np.array([0.9, 0.9, 0.9, 0.2])
  threshold = thresholds.threshold(
      Target(coverage=0.25), np.ones(4, bool), confidence)
  assert threshold == pytest.approx(0.55)
  is_correct = np.array([True, True, False, True])
  # With two of three the risk would be held; the third comes with them.
  assert thresholds.threshold(
      Target(risk=0.34), is_correct, confidence) == thresholds.NOTHING


def test_neighbouring_numbers_are_told_apart():
  below = np.nextafter(np.float32(1), np.float32(0))
  confidence = np.array([1, below, 0.3], np.float32)
  threshold = thresholds.threshold(Target(coverage=0.3), np.ones(3, bool), confidence)
  np.testing.assert_array_equal(
      confidence >= np.float32(threshold), [True, False, False])


def test_without_a_target_everything_is_accepted():
  assert thresholds.threshold(Target(), IS_CORRECT, CONFIDENCE) == 0.0
  assert thresholds.judge(0.0, IS_CORRECT, CONFIDENCE) == {
      'risk': 0.4, 'coverage': 1.0, 'images': 5}


def test_risk_is_a_fraction_of_accepted_answers_and_coverage_of_all():
  assert thresholds.judge(0.65, IS_CORRECT, CONFIDENCE) == {
      'risk': pytest.approx(1 / 3), 'coverage': 0.6, 'images': 5}


@pytest.mark.parametrize('target, message', [
    (Target(0.1, 0.9), 'a target risk or a target coverage'),
    (Target(risk=0.0), 'between 0 and 1'), (Target(risk=1.0), 'between 0 and 1'),
    (Target(coverage=0.0), 'above 0'), (Target(coverage=1.5), 'at most 1'),
    (Target(risk=float('nan')), 'between 0 and 1')])
def test_impossible_targets_are_refused(target, message):
  with pytest.raises(UserError, match=message):
    thresholds.threshold(target, IS_CORRECT, CONFIDENCE)


def test_missing_or_non_finite_confidences_are_refused():
  with pytest.raises(UserError, match='threshold split'):
    thresholds.threshold(Target(risk=0.1), np.array([], bool), np.array([]))
  with pytest.raises(UserError, match='diverged'):
    thresholds.threshold(Target(risk=0.1), np.array([True]), np.array([np.nan]))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(
        st.booleans(), st.floats(0, 1, width=32)), min_size=1, max_size=40),
    st.floats(0.02, 0.9))
def test_no_lower_threshold_holds_the_risk(answers, risk):
  is_correct, confidence = map(np.array, zip(*answers))
  chosen = thresholds.threshold(Target(risk=risk), is_correct, confidence)

  def is_held(threshold):
    accept = confidence >= threshold
    errors = (accept & ~is_correct).sum()
    return (errors + 1) / (accept.sum() + 1) <= risk

  assert chosen == thresholds.NOTHING or is_held(chosen)
  lower = confidence[confidence < chosen]
  assert not any(is_held(value) for value in lower)
