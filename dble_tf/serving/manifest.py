"""What an export says of itself: manifest.json for programs, README.md for people."""

import hashlib
import json
from collections.abc import Mapping

import tensorflow as tf
from etils import epath
from tensorflow.core.protobuf import saved_model_pb2

NAME = 'manifest.json'


def write(directory: epath.Path, facts: Mapping) -> None:
  """Writes both for a SavedModel, with its signatures and the SHA-256 of its files.

  Args:
    directory: of the SavedModel.
    facts: model, version, class_names, threshold and warm_up_requests; also, as far as
      they are known: dataset, method, seed, flags, versions, metrics and abstention.
  """
  content = {
      **facts,
      'signatures': signatures(directory),
      'sha256': {
          str(path.relative_to(directory)): _sha256(path)
          for path in (directory / 'saved_model.pb',
                       *sorted((directory / 'variables').iterdir()))},
  }
  (directory / NAME).write_text(json.dumps(content, indent=2) + '\n')
  (directory / 'README.md').write_text(readme(content))


def signatures(directory: epath.Path) -> dict[str, dict]:
  """Inputs and outputs, with type and shape, of each signature of a SavedModel."""
  saved_model = saved_model_pb2.SavedModel.FromString(
      (directory / 'saved_model.pb').read_bytes())
  graph, = saved_model.meta_graphs
  return {
      name: {'inputs': _tensors(signature.inputs),
             'outputs': _tensors(signature.outputs)}
      for name, signature in sorted(graph.signature_def.items())
      if not name.startswith('__')}


def readme(content: Mapping) -> str:
  """The manifest in words."""
  lines = [f'# {content["model"]}, version {content["version"]}', '']
  known = [(title, content[key]) for title, key in (
      ('data', 'dataset'), ('method', 'method'), ('seed', 'seed')) if key in content]
  if known:
    lines += [', '.join(f'{title} {value}' for title, value in known) + '.', '']
  lines += [f'Classes: {", ".join(content["class_names"])}.', '',
            '## Signatures', '',
            'B is the batch, of any size.', '']
  for name, signature in content['signatures'].items():
    takes, gives = (
        ', '.join(f'`{key}` {tensor["dtype"]} {_shape(tensor["shape"])}'
                  for key, tensor in signature[side].items())
        for side in ('inputs', 'outputs'))
    lines += [f'- `{name}`: {takes} -> {gives}']
  lines += ['', '## When answers are accepted', '', *_abstention(content)]
  if 'metrics' in content:
    lines += ['', '## Figures', '', *_figures(content['metrics'])]
  requests = content['warm_up_requests']
  lines += ['', '## Files', '',
            f'TF Serving runs {requests} warm-up requests as it loads the model.'
            if requests else 'There are no warm-up requests: tensorflow-serving-api '
            'was not installed.',
            f'`{NAME}` has all of this, the training flags, versions of packages and '
            'the SHA-256 of the weights.']
  return '\n'.join(lines) + '\n'


def _abstention(content):
  abstention = content.get('abstention')
  if not content['threshold']:
    text = '`accept` is true for every answer: '
    yield text + ('all of them are within the target.' if abstention
                  else 'no target was given.')
  else:
    yield f'`accept` is true where `confidence` is {content["threshold"]:.6g} or more.'
  if abstention:
    (kind, target), = abstention['target'].items()
    yield (f'That was chosen on validation images for a {kind} of {100 * target:g} %'
           + ('.' if abstention['is_met'] else
              ', which none holds there: nothing is accepted.'))
    yield ''
    yield '| images | accepted | wrong among them |'
    yield '|---|---|---|'
    for split in ('validation', 'test'):
      if split in abstention:
        judged = abstention[split]
        risk = ('–' if judged['risk'] is None else f'{100 * judged["risk"]:.2f} %')
        yield (f'| {split}, {judged["images"]:,} | {100 * judged["coverage"]:.2f} % '
               f'| {risk} |')


def _figures(metrics):
  names = list(next(iter(metrics.values())))
  yield f'| images | {" | ".join(names)} |'
  yield '|---' * (len(names) + 1) + '|'
  for split, figures in metrics.items():
    cells = ('–' if figures[name] is None else f'{figures[name]:.4f}' for name in names)
    yield f'| {split} | {" | ".join(cells)} |'


def _tensors(infos):
  return {
      name: {'dtype': tf.as_dtype(info.dtype).name,
             'shape': [None if dim.size < 0 else dim.size
                       for dim in info.tensor_shape.dim]}
      for name, info in sorted(infos.items())}


def _shape(shape):
  return f'[{", ".join("B" if size is None else str(size) for size in shape)}]'


def _sha256(path):
  return hashlib.sha256(path.read_bytes()).hexdigest()
