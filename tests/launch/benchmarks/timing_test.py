from launch.benchmarks import timing


def test_every_function_runs_once_more_than_it_is_timed_and_in_turns():
  calls = []
  times = timing.interleave(
      {name: lambda name=name: calls.append(name) for name in 'ab'}, rounds=3)
  assert ''.join(calls) == 'ab' 'ab' 'ba' 'ab'
  assert {name: len(seconds) for name, seconds in times.rounds.items()} == {
      'a': 3, 'b': 3}


def test_times_are_those_of_the_clock(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(timing.time, 'perf_counter', lambda: now[0])

  def taking(seconds):
    def function():
      now[0] += seconds
    return function

  times = timing.interleave({'slow': taking(3.0), 'quick': taking(1.5)}, rounds=4)
  assert times.median('slow') == 3.0
  assert times.ratio('slow', 'quick') == 2.0


def test_a_ratio_compares_within_rounds():
  # Twice as slow in every round, though the machine slowed down from round to round.
  times = timing.Timings({'a': [2.0, 8.0, 20.0], 'b': [1.0, 4.0, 10.0]})
  assert times.ratio('a', 'b') == 2.0
  # One disturbed round out of three does not matter.
  times = timing.Timings({'a': [2.0, 8.0, 900.0], 'b': [1.0, 4.0, 10.0]})
  assert times.ratio('a', 'b') == 2.0


def test_the_machine_is_named_by_cores_and_devices():
  assert 'cores of' in timing.machine() and 'CPU' in timing.machine()
