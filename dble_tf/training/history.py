"""The history of a training run, as a table that any program reads."""

import csv
import io
import os

import keras
from etils import epath

from dble_tf import files


class HistoryFile(keras.callbacks.Callback):
  """Keeps a CSV file with a row for each epoch: its number, from 1, and its logs.

  Not `keras.callbacks.CSVLogger`: it appends, so that a killed process leaves half a
  row, or a row of an epoch that is repeated.
  """

  def __init__(self, path: str | os.PathLike, first_epoch: int = 0):
    """Names the file.

    Args:
      path: the file, a new one or that of an earlier process.
      first_epoch: the epoch to continue at, from 0. Rows of it and of later ones are
        dropped.
    """
    super().__init__()
    self._path = epath.Path(path)
    self._first_epoch = first_epoch
    self._rows = []

  def on_train_begin(self, logs=None):
    text = self._path.read_text() if self._path.exists() else ''
    self._rows = [row for row in csv.DictReader(io.StringIO(text))
                  if int(row['epoch']) <= self._first_epoch]

  def on_epoch_end(self, epoch, logs=None):
    self._rows.append({'epoch': epoch + 1, **{
        name: float(value) for name, value in (logs or {}).items()}})
    names = dict.fromkeys(name for row in self._rows for name in row)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator='\n')
    writer.writeheader()
    writer.writerows(self._rows)
    with files.replacing(self._path) as temporary:
      temporary.write_text(buffer.getvalue())
