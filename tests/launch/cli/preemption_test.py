import os
import signal

import pytest

from launch.cli import preemption


def terminate():
  os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def handled():
  handler = preemption.Preemption()
  with handler.handling():
    yield handler


def test_sigterm_is_an_exception_that_no_handler_of_errors_swallows(handled):
  with pytest.raises(preemption.Preempted):
    try:
      terminate()
    except Exception:
      pytest.fail('It was treated as an error.')


def test_it_waits_while_it_is_held(handled):
  handled.hold()
  terminate()
  with pytest.raises(preemption.Preempted):
    handled.release()


def test_what_saves_after_the_first_is_not_disturbed_by_others(handled):
  with pytest.raises(preemption.Preempted):
    terminate()
  terminate()


def test_releasing_raises_again_where_the_first_was_swallowed(handled):
  try:
    terminate()
  except preemption.Preempted:
    pass
  handled.hold()
  with pytest.raises(preemption.Preempted):
    handled.release()


def test_the_handler_of_before_comes_back():
  before = signal.getsignal(signal.SIGTERM)
  with preemption.Preemption().handling():
    assert signal.getsignal(signal.SIGTERM) is not before
  assert signal.getsignal(signal.SIGTERM) is before
