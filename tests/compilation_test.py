"""The operations of steps, served functions and input pipelines, for XLA and TPUs."""

import pytest
import tensorflow as tf

from dble_tf.data import load
from launch.benchmarks import random_data
from launch.runs import build
from launch.runs import methods
from launch.settings import experiment

# Results whose shape depends on values, Python, strings: nothing of it runs on a TPU.
FORBIDDEN_OPS = {
    'Where', 'Unique', 'UniqueV2', 'DynamicPartition', 'NonMaxSuppression', 'PyFunc',
    'PyFuncStateless', 'EagerPyFunc', 'Print', 'PrintV2', 'Assert', 'AsString',
    'StringFormat', 'StringJoin', 'StringToNumber'}
PYTHON_DATA = {'PyFunc', 'PyFuncStateless', 'EagerPyFunc', 'GeneratorDataset'}
# Distances, likelihoods, probabilities and losses are made of these.
PRECISE_OPS = {
    'BatchMatMulV2', 'Softmax', 'LogSoftmax', 'Exp', 'Log', 'Log1p', 'Sqrt', 'Softplus',
    'SoftmaxCrossEntropyWithLogits', 'SparseSoftmaxCrossEntropyWithLogits', 'ArgMin',
    'ArgMax', 'Ndtri', 'UnsortedSegmentSum', 'AssignAddVariableOp'}


@pytest.fixture(scope='module')
def digits():
  return load('digits', validation_size=200)


def parse(*arguments):
  return experiment.parse([
      '--representation_size=8', '--num_shots=2', '--num_queries=2',
      '--episodes_per_step=2', '--ensemble_size=2', *arguments])


def nodes(graph_def):
  """All nodes of a graph and of the functions in it."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def functions(values, dataset):
  """Name -> a function of the model, and the tensors of fixed shape that it takes."""
  model = build.build_model(values, dataset)
  training = build.make_training_data(values, dataset).element_spec
  images = tf.TensorSpec([12, *dataset.image_shape], tf.uint8)
  class_ids = tf.TensorSpec([12], tf.int32)
  return {
      'train_step': (model.train_step, training),
      'test_step': (model.test_step, (images, class_ids)),
      'serve': (model.serve, images),
  }


@pytest.mark.parametrize('method', methods.METHODS)
def test_steps_are_static_and_precise_where_they_must_be(method, digits):
  # Traced, not run: some CPUs cannot multiply bfloat16 matrices.
  values = parse(f'--method={method}', '--dtype_policy=mixed_bfloat16')
  for name, (function, spec) in functions(values, digits).items():
    traced = tf.function(function).get_concrete_function(spec)
    graph_def = traced.graph.as_graph_def()
    assert not FORBIDDEN_OPS & {node.op for node in nodes(graph_def)}, name
    for output in tf.nest.flatten(traced.structured_outputs):
      assert output.dtype in (tf.float32, tf.int32), name
    # The encoder is of half precision, and nothing behind it.
    half = {node.op for node in nodes(graph_def) for key in ('T', 'dtype')
            if node.attr[key].type == tf.bfloat16.as_datatype_enum}
    assert 'MatMul' in half, name
    assert not PRECISE_OPS & half, name
    # Distances, logits, probabilities: one number a class, of which there are ten.
    for tensor in (out for op in traced.graph.get_operations() for out in op.outputs):
      assert tensor.dtype != tf.string, f'{name}: {tensor}'
      if tensor.shape.rank and tensor.shape[-1] == 10:
        assert tensor.dtype != tf.bfloat16, f'{name}: {tensor}'


def lowered(function, spec):
  """XLA's text of a function of tensors in any structure."""
  flat = lambda *tensors: function(tf.nest.pack_sequence_as(spec, tensors))
  lower = tf.function(flat, jit_compile=True).experimental_get_compiler_ir(
      *tf.nest.flatten(spec))
  return lower(stage='hlo', platform_name='CPU')


@pytest.mark.parametrize('encoder, size', [
    ('mlp', 8), ('vgg11', 32), pytest.param('resnet50', 16, marks=pytest.mark.slow),
    pytest.param('thin_resnet', 16, marks=pytest.mark.slow)])
def test_every_encoder_is_lowered_to_xla(encoder, size):
  dataset = random_data.make('cifar10', 100, size)
  values = parse('--method=dble', f'--encoder={encoder}', '--episode=leave_one_out')
  for name, (function, spec) in functions(values, dataset).items():
    text = lowered(function, spec)
    assert 'ENTRY' in text and '<=' not in text, name  # <=: a bounded, dynamic size.


@pytest.mark.slow
@pytest.mark.parametrize(
    'encoder, size', [('vgg11', 32), ('thin_resnet', 16), ('resnet50', 16)])
def test_every_encoder_compiles_and_runs(encoder, size):
  dataset = random_data.make('cifar10', 100, size)
  values = parse('--method=dble', f'--encoder={encoder}', '--episode=leave_one_out')
  for function, spec in functions(values, dataset).values():
    inputs = tf.nest.map_structure(lambda one: tf.zeros(one.shape, one.dtype), spec)
    outputs = tf.function(function, jit_compile=True)(inputs)
    for output in tf.nest.flatten(outputs):
      assert tf.reduce_all(tf.math.is_finite(tf.cast(output, tf.float32)))


@pytest.mark.parametrize('method', ['vanilla', 'mixup', 'deep_ensemble', 'dble'])
def test_input_needs_no_python(method):
  dataset = random_data.make('cifar10', 100)  # Its images are augmented.
  streams = [build.make_training_data(parse(f'--method={method}'), dataset),
             dataset.train.batches(10)]
  for stream in streams:
    graph_def = tf.compat.v1.GraphDef.FromString(tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(stream)).numpy())
    found = {node.op for node in nodes(graph_def)}
    assert any('Dataset' in op for op in found)
    assert not PYTHON_DATA & found
