"""A session of ONNX Runtime is opened where its runs are: once in each process."""

import functools

import onnxruntime as ort


@functools.cache
def session(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def scores(model, given, names=None):
    return session(model).run(names, given)
