"""Labels image files with an export, each with its confidence.

  python -m launch.predict --saved_model=runs/digits/export/digits/1 image.png
  python -m launch.predict --server=localhost:8500 --model=digits image.png folder
  python -m launch.predict --server=localhost:8501 --rest --model=digits image.png

Takes PNG and JPEG files, and all files with such names in folders. The exit code is 0
if every file got an answer, 2 if some were skipped, and 1 if nothing could be asked.
"""

from collections.abc import Sequence

from absl import flags

from .cli import entry
from .cli.groups import group

FLAGS = flags.FLAGS

with group('model', FLAGS):
  flags.DEFINE_string(
      'saved_model', None, 'One version of an export, to be asked without a server.')
  flags.DEFINE_string('server', None, 'Host and port of TF Serving.')
  flags.DEFINE_string('model', None, 'Its name on the server, as in models.config.')
  flags.DEFINE_bool('rest', False, 'Ask --server over REST instead of gRPC.')
  flags.DEFINE_float(
      'timeout', 60, 'Seconds to wait for an answer.', lower_bound=0.001)
with group('files', FLAGS):
  flags.DEFINE_enum('format', 'table', ['table', 'json', 'csv'], 'Output format.')
  flags.DEFINE_integer(
      'files_per_request', 32, 'Largest number of files in a request.', lower_bound=1)
flags.register_multi_flags_validator(
    ['server', 'saved_model'],
    lambda values: (values['server'] is None) != (values['saved_model'] is None),
    'give either --saved_model=DIRECTORY or --server=HOST:PORT')
flags.register_multi_flags_validator(
    ['server', 'model'],
    lambda values: values['server'] is None or values['model'] is not None,
    "give --model, the model's name on the server, such as --model=digits")


def main(arguments: Sequence[str]) -> int:
  from .runs import ask
  return ask.run(FLAGS, arguments)


def command() -> None:
  entry.run(main, takes_arguments=True)


if __name__ == '__main__':
  command()
