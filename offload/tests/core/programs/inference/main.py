"""ONNX Runtime as everybody writes it: a model exported to a file, opened, asked what it takes, and run."""

import hashlib
import pathlib
import warnings

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession


def export(path, beside):
    random = np.random.default_rng(0)
    layers, weights = [], []
    for index, (rows, columns) in enumerate([(64, 128), (128, 10)]):
        weights.append(numpy_helper.from_array(random.normal(size=(rows, columns)).astype("float32"), f"w{index}"))
        layers.append(helper.make_node("MatMul", [f"h{index}", f"w{index}"], [f"m{index}"]))
        layers.append(helper.make_node("Softmax" if index else "Relu", [f"m{index}"], [f"h{index + 1}"]))
    given = helper.make_tensor_value_info("h0", TensorProto.FLOAT, ["batch", 64])
    result = helper.make_tensor_value_info("h2", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(layers, "digits", [given], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="labels", value="0..9")
    pathlib.Path("weights.bin").unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=beside, location="weights.bin", size_threshold=0)


def main():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    images = np.random.default_rng(1).normal(size=(32, 64)).astype("float32")
    for name, beside in (("model.onnx", False), ("split.onnx", True)):
        export(name, beside)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            session = InferenceSession(name, options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        print([str(each.message) for each in told], session.get_providers())
        print(*session.get_inputs(), *session.get_outputs(), session.get_modelmeta().custom_metadata_map)
        (scores,) = session.run(None, {session.get_inputs()[0].name: images})
        print(scores.shape, scores.dtype, hashlib.sha256(scores.tobytes()).hexdigest())
    try:
        session.run(["nothing"], {"h0": images})
    except Exception as error:
        print(type(error), error)
    print(isinstance(session, ort.InferenceSession), ort.get_device(), ort.get_available_providers())


if __name__ == "__main__":
    main()
