import csv

import keras

from dble_tf.training.history import HistoryFile


def run(path, logs, first_epoch=0):
  """The epochs of a training from the first one on, each with its logs."""
  history = HistoryFile(path, first_epoch)
  history.on_train_begin()
  for epoch, epoch_logs in enumerate(logs, first_epoch):
    history.on_epoch_end(epoch, epoch_logs)


def read(path):
  with path.open(newline='') as file:
    return [{name: float(value or 'nan') for name, value in row.items()}
            for row in csv.DictReader(file)]


def test_each_epoch_has_a_row_once_it_is_over(tmp_path):
  path = tmp_path / 'run' / 'history.csv'
  history = HistoryFile(path)
  history.on_train_begin()
  assert not path.exists()
  history.on_epoch_end(0, {'loss': 0.5, 'val_loss': 0.1 + 0.2})
  assert path.read_text() == 'epoch,loss,val_loss\n1,0.5,0.30000000000000004\n'
  history.on_epoch_end(1, {'loss': 0.25, 'val_loss': 0.125})
  assert read(path) == [{'epoch': 1, 'loss': 0.5, 'val_loss': 0.1 + 0.2},
                        {'epoch': 2, 'loss': 0.25, 'val_loss': 0.125}]
  assert [file.name for file in path.parent.iterdir()] == ['history.csv']


def test_a_resumed_run_drops_the_rows_that_it_repeats(tmp_path):
  path, whole = tmp_path / 'history.csv', tmp_path / 'whole.csv'
  logs = [{'loss': 1 / 3}, {'loss': 1 / 7}, {'loss': 1 / 9}]
  run(whole, logs)
  run(path, [logs[0], {'loss': 5.0}, {'loss': 6.0}])
  run(path, logs[1:], first_epoch=1)
  assert path.read_text() == whole.read_text()
  run(path, [])  # From scratch: nothing is kept, but the file is as yet.
  assert path.read_text() == whole.read_text()
  run(path, [{'loss': 2.0}])
  assert read(path) == [{'epoch': 1, 'loss': 2.0}]


def test_logs_that_come_later_are_empty_before(tmp_path):
  run(tmp_path / 'history.csv', [{'loss': 1.0}, {'loss': 2.0, 'val_loss': 3.0}])
  assert (tmp_path / 'history.csv').read_text() == (
      'epoch,loss,val_loss\n1,1.0,\n2,2.0,3.0\n')


def test_fit_keeps_the_logs_of_training_and_validation(tmp_path):
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile('sgd', 'mse')
  data = [[1.0], [2.0]], [[1.0], [0.0]]
  x, y = map(keras.ops.convert_to_tensor, data)
  history = model.fit(
      x, y, epochs=2, validation_data=(x, y), verbose=0,
      callbacks=[HistoryFile(tmp_path / 'history.csv')]).history
  assert read(tmp_path / 'history.csv') == [
      {'epoch': epoch + 1, **{name: values[epoch] for name, values in history.items()}}
      for epoch in range(2)]
