"""ONNX Runtime in a function that a rule names: sessions live in the acceptor, and give the bits of local ones."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from offload_local import local_session
from offload_onnx import scores
from offload_programs import Project, same
from onnx import TensorProto, helper, numpy_helper

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import Config, FunctionRule
from remotegpu_offload.functions import client

pytestmark = pytest.mark.frameworks

CONFIG = Config(rules=(FunctionRule("offload_onnx.scores"),))
X = np.random.default_rng(1).normal(size=(5, 4)).astype("float32")


def model_of(size: int = 4, *, width: int = 3) -> onnx.ModelProto:
    """x @ w, and its tanh."""
    weights = np.random.default_rng(size).normal(size=(size, width)).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    initializers = [numpy_helper.from_array(weights, "w")]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", size])
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in ("y", "h")]
    graph = helper.make_graph(nodes, "small", [given], results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="test")


def labels() -> bytes:
    """A classifier: numbers of labels, and for each row a dictionary of probabilities; and text, as it was given."""
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            coefficients=[0.5, -1.0, 0.25, 1.0, 1.0, 0.5, -0.5, 0.0],
            intercepts=[0.1, -0.1],
            classlabels_ints=[3, 7],
            post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[3, 7]),
        helper.make_node("Identity", ["text"], ["said"]),
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
    ]
    mapped = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_value_info("maps", helper.make_sequence_type_proto(mapped)),
        helper.make_tensor_value_info("said", TensorProto.STRING, ["m"]),
        helper.make_tensor_value_info("half", TensorProto.FLOAT16, ["n", 4]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("text", TensorProto.STRING, ["m"]),
    ]
    graph = helper.make_graph(nodes, "labels", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


SMALL = model_of().SerializeToString()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with local_session(CONFIG) as session:
        yield session


@pytest.fixture(scope="module")
def remote(session: Session) -> Callable[..., Any]:
    made: Callable[..., Any] = client.decorated(scores, "offload_onnx.scores", CONFIG, session)
    return made


def trips(session: Session) -> int:
    return session.peer.counters.round_trips


def equal(found: Any, expected: Any) -> None:
    """Compares lists of results: the same types, the same bits."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        if isinstance(other, np.ndarray):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert one.tolist() == other.tolist() if other.dtype.hasobject else one.tobytes() == other.tobytes()
        else:
            assert one == other


def test_each_run_is_one_trip_and_equal_bit_for_bit(session: Session, remote: Callable[..., Any]) -> None:
    local = onnxruntime.InferenceSession(SMALL)
    remote(SMALL, {"x": X})
    for size in (1, 7, 3000):
        given = {"x": np.resize(X, (size, 4))}
        before = trips(session)
        processes, found = remote(SMALL, given)
        assert trips(session) - before == 1
        equal(found, local.run(None, given))
        assert len(processes) == 1 and os.getpid() not in processes, "opened once, and in the acceptor"
    equal(remote(SMALL, {"x": X}, ["h"])[1], local.run(["h"], {"x": X}))


def test_results_of_every_kind(remote: Callable[..., Any]) -> None:
    given = {"x": X, "text": np.array(["a", "gr\u00fc\u00dfe"], dtype=object)}
    _, found = remote(labels(), given)
    equal(found, onnxruntime.InferenceSession(labels()).run(None, given))
    assert type(found[1]) is list and type(found[1][0]) is dict and found[3].dtype == np.float16


@pytest.mark.parametrize(
    ("model", "given", "names"),
    [
        (b"no model", {"x": X}, None),
        (SMALL, {}, None),
        (SMALL, {"x": X.T}, None),
        (SMALL, {"x": X.astype("float64")}, None),
        (SMALL, {"x": X}, ["z"]),
    ],
    ids=["model", "no input", "shape", "type", "output"],
)
def test_mistakes_are_told_in_the_words_of_onnxruntime(
    remote: Callable[..., Any], model: bytes, given: Any, names: Sequence[str] | None
) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever it is, its words are the same
        scores(model, given, names)
    with pytest.raises(Exception) as found:  # noqa: PT011
        remote(model, given, names)
    assert str(expected.value) in str(found.value)
    remote(SMALL, {"x": X})


def test_threads_of_the_program_run_at_the_same_time(remote: Callable[..., Any]) -> None:
    inputs = [np.full((3, 4), number, np.float32) for number in range(8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda given: remote(SMALL, {"x": given})[1], inputs))
    local = onnxruntime.InferenceSession(SMALL)
    for given, results in zip(inputs, found, strict=True):
        equal(results, local.run(None, {"x": given}))


def test_an_unmodified_program_says_the_same(tmp_path: Path) -> None:
    project = Project(tmp_path, "inference")
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    same(local, project.offloaded("main.py", split="rules"))
