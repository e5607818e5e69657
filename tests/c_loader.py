"""TensorFlow's C++ SavedModel loader, which TF Serving uses, through the C API.

Loading and running involve no Python code of TensorFlow, Keras or this package.
"""

import ctypes
import importlib.util
import pathlib

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

_NUMPY = {
    types_pb2.DT_FLOAT: np.float32, types_pb2.DT_INT32: np.int32,
    types_pb2.DT_UINT8: np.uint8, types_pb2.DT_BOOL: np.bool_,
    types_pb2.DT_INT64: np.int64, types_pb2.DT_DOUBLE: np.float64,
}
_STRING_SIZE = 24  # Bytes of a TF_TString.


class _Buffer(ctypes.Structure):
  _fields_ = [('data', ctypes.c_void_p), ('length', ctypes.c_size_t),
              ('deallocator', ctypes.c_void_p)]


class _Output(ctypes.Structure):
  _fields_ = [('operation', ctypes.c_void_p), ('index', ctypes.c_int)]


def _library():
  root = pathlib.Path(importlib.util.find_spec('tensorflow').origin).parent
  library = ctypes.CDLL(str(root / 'python' / 'lib_pywrap_tensorflow_common.so'))
  for name in ('TF_NewStatus', 'TF_NewGraph', 'TF_NewSessionOptions',
               'TF_LoadSessionFromSavedModel', 'TF_GraphOperationByName',
               'TF_AllocateTensor', 'TF_TensorData', 'TF_StringGetDataPointer'):
    getattr(library, name).restype = ctypes.c_void_p
  library.TF_Message.restype = ctypes.c_char_p
  for name in ('TF_Dim', 'TF_StringGetSize', 'TF_TensorByteSize'):
    getattr(library, name).restype = ctypes.c_size_t
  return library


class Error(Exception):
  """An error status of TensorFlow."""


class Loaded:
  """A SavedModel in a C++ session.

  Attributes:
    signatures: name -> SignatureDef, as the loader returns them.
  """

  def __init__(self, directory):
    self._c = _library()
    self._status = ctypes.c_void_p(self._c.TF_NewStatus())
    self._graph = ctypes.c_void_p(self._c.TF_NewGraph())
    buffer = _Buffer()
    tags = (ctypes.c_char_p * 1)(b'serve')
    self._session = ctypes.c_void_p(self._c.TF_LoadSessionFromSavedModel(
        ctypes.c_void_p(self._c.TF_NewSessionOptions()), None,
        str(directory).encode(), tags, 1, self._graph, ctypes.byref(buffer),
        self._status))
    self._check()
    meta_graph = meta_graph_pb2.MetaGraphDef.FromString(
        ctypes.string_at(buffer.data, buffer.length))
    self.signatures = dict(meta_graph.signature_def)

  def run(self, signature_name, **inputs):
    """Runs a signature: arrays or lists of bytes by name -> arrays by name."""
    signature = self.signatures[signature_name]
    feeds = [self._output(signature.inputs[name]) for name in inputs]
    fetches = [self._output(info) for info in signature.outputs.values()]
    tensors = [self._tensor(values) for values in inputs.values()]
    results = (ctypes.c_void_p * len(fetches))()
    self._c.TF_SessionRun(
        self._session, None,
        (_Output * len(feeds))(*feeds), (ctypes.c_void_p * len(tensors))(*tensors),
        len(feeds),
        (_Output * len(fetches))(*fetches), results, len(fetches),
        None, 0, None, self._status)
    for tensor in tensors:
      self._c.TF_DeleteTensor(ctypes.c_void_p(tensor))
    self._check()
    arrays = [self._array(ctypes.c_void_p(result)) for result in results]
    return dict(zip(signature.outputs, arrays))

  def _check(self):
    if self._c.TF_GetCode(self._status):
      raise Error(self._c.TF_Message(self._status).decode())

  def _output(self, info):
    name, index = info.name.split(':')
    operation = self._c.TF_GraphOperationByName(self._graph, name.encode())
    assert operation, name
    return _Output(operation, int(index))

  def _tensor(self, values):
    values = np.asarray(values)
    is_text = values.dtype.kind in 'OS'
    dtype = (types_pb2.DT_STRING if is_text else
             next(key for key, kind in _NUMPY.items() if kind == values.dtype))
    size = _STRING_SIZE * values.size if is_text else values.nbytes
    tensor = self._c.TF_AllocateTensor(
        dtype, (ctypes.c_int64 * values.ndim)(*values.shape), values.ndim,
        ctypes.c_size_t(size))
    data = self._c.TF_TensorData(ctypes.c_void_p(tensor))
    if is_text:
      for i, text in enumerate(values.reshape(-1).tolist()):
        place = ctypes.c_void_p(data + i * _STRING_SIZE)
        self._c.TF_StringInit(place)
        self._c.TF_StringCopy(place, text, ctypes.c_size_t(len(text)))
    elif size:
      ctypes.memmove(data, np.ascontiguousarray(values).ctypes.data, size)
    return tensor

  def _array(self, tensor):
    shape = [self._c.TF_Dim(tensor, i) for i in range(self._c.TF_NumDims(tensor))]
    count = int(np.prod(shape))
    data = self._c.TF_TensorData(tensor)
    dtype = self._c.TF_TensorType(tensor)
    if dtype == types_pb2.DT_STRING:
      places = [ctypes.c_void_p(data + i * _STRING_SIZE) for i in range(count)]
      values = np.array([
          ctypes.string_at(self._c.TF_StringGetDataPointer(place),
                           self._c.TF_StringGetSize(place))
          for place in places], object)
    else:
      size = self._c.TF_TensorByteSize(tensor)
      content = ctypes.string_at(data, size) if size else b''
      values = np.frombuffer(content, _NUMPY[dtype]).copy()
    self._c.TF_DeleteTensor(tensor)
    return values.reshape(shape)
