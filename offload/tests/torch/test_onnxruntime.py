"""ONNX Runtime by its profile: sessions live in an acceptor, and give bit for bit what local ones do."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import gc
import importlib
import json
import os
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from offload_local import LocalAcceptors, local_session
from offload_programs import Project, same
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import ClassRule, CodeRules, Config, FunctionRule, ModuleRule
from remotegpu_offload.functions import client, profiles
from remotegpu_offload.functions.inference.model import external_files
from remotegpu_offload.objects.codec import RefusedError
from remotegpu_offload.wire.errors import OffloadError

pytestmark = pytest.mark.frameworks

CONFIG = Config(rules=(ModuleRule("onnxruntime"),), code=CodeRules(page=()))
X = np.random.default_rng(1).normal(size=(5, 4)).astype("float32")


def model_of(size: int = 4, *, width: int = 3, constant: bool = False) -> onnx.ModelProto:
    """x @ w, and its tanh. `constant`: the weights are those of a node within a node."""
    weights = np.random.default_rng(size).normal(size=(size, width)).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    initializers = [numpy_helper.from_array(weights, "w")]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=initializers.pop()))
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


def under_rules(session: Session) -> Any:
    """Returns the `onnxruntime` that an armed program sees."""
    seen = types.SimpleNamespace(**vars(onnxruntime))
    for rule in profiles.rules(CONFIG):
        module, _, name = rule.pattern.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        setattr(seen, name, client.decorated(value, rule.pattern, CONFIG, session))
    return seen


@pytest.fixture
def offloaded(session: Session) -> Any:
    return under_rules(session)


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


def test_every_name_of_the_profile_exists() -> None:
    for rule in profiles.expand(ModuleRule("onnxruntime")):
        module, _, name = rule.pattern.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        assert isinstance(value, type) is isinstance(rule, ClassRule) is not isinstance(rule, FunctionRule)


def test_each_run_is_one_trip_and_equal_bit_for_bit(session: Session, offloaded: Any) -> None:
    local = onnxruntime.InferenceSession(SMALL)
    start = trips(session)
    remote = offloaded.InferenceSession(SMALL)
    assert trips(session) - start == 1 and isinstance(remote, onnxruntime.InferenceSession)
    for _ in range(3):
        for ours, theirs in zip(
            [*remote.get_inputs(), *remote.get_outputs()], [*local.get_inputs(), *local.get_outputs()], strict=True
        ):
            assert (ours.name, ours.type, ours.shape) == (theirs.name, theirs.type, theirs.shape)
            assert str(ours) == str(theirs)
        assert remote.get_modelmeta().producer_name == local.get_modelmeta().producer_name == "test"
        assert remote.get_modelmeta().version == local.get_modelmeta().version
        assert remote.get_overridable_initializers() == []
    # All of that together is one more.
    assert trips(session) - start == 2
    for size in (1, 7, 3000):
        given = {"x": np.resize(X, (size, 4))}
        before = trips(session)
        found = remote.run(None, given)
        assert trips(session) - before == 1
        equal(found, local.run(None, given))
    equal(remote.run(["h"], {"x": X}), local.run(["h"], {"x": X}))


def test_results_of_every_kind(offloaded: Any) -> None:
    given = {"x": X, "text": np.array(["a", "grüße"], dtype=object)}
    found = offloaded.InferenceSession(labels()).run(None, given)
    equal(found, onnxruntime.InferenceSession(labels()).run(None, given))
    assert type(found[1]) is list and type(found[1][0]) is dict and found[3].dtype == np.float16


def test_the_file_is_this_programs_and_travels_once(session: Session, offloaded: Any, tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    onnx.save(model_of(4, width=100_000), path)
    before = session.peer.counters.as_dict()["bytes_out"]
    one = offloaded.InferenceSession(path)
    first = session.peer.counters.as_dict()["bytes_out"] - before
    two = offloaded.InferenceSession(str(path))
    second = session.peer.counters.as_dict()["bytes_out"] - before - first
    assert first > path.stat().st_size > 100 * second
    expected = onnxruntime.InferenceSession(path).run(None, {"x": X})
    equal(one.run(None, {"x": X}), expected)
    equal(two.run(None, {"x": X}), expected)


@pytest.mark.parametrize("constant", [False, True])
def test_weights_beside_a_model_travel_with_it(offloaded: Any, tmp_path: Path, constant: bool) -> None:
    path = tmp_path / "split.onnx"
    (tmp_path / "sub").mkdir()
    settings: dict[str, Any] = {"save_as_external_data": True, "size_threshold": 0, "convert_attribute": True}
    onnx.save(model_of(constant=constant), path, location="sub/weights.bin", **settings)
    assert external_files(path.read_bytes()) == {"sub/weights.bin"}
    expected = onnxruntime.InferenceSession(path).run(None, {"x": X})
    remote = offloaded.InferenceSession(path)
    equal(remote.run(None, {"x": X}), expected)
    remote.set_providers(["CPUExecutionProvider"])
    equal(remote.run(None, {"x": X}), expected)


def test_the_files_of_a_model_are_those_that_onnx_names() -> None:
    model = model_of()
    assert external_files(model.SerializeToString()) == set()
    external_data_helper.convert_model_to_external_data(model, all_tensors_to_one_file=False, size_threshold=0)
    for tensor in model.graph.initializer:
        external_data_helper.set_external_data(tensor, location="a/b.bin")
    assert external_files(model.SerializeToString()) == {"a/b.bin"}
    for location in ("../secret", "/etc/passwd", "a/../../b", ""):
        external_data_helper.set_external_data(model.graph.initializer[0], location=location)
        assert external_files(model.SerializeToString()) == set()


def test_nothing_outside_of_a_models_folder_is_sent(offloaded: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 48)
    (tmp_path / "model").mkdir()
    model = model_of()
    external_data_helper.set_external_data(model.graph.initializer[0], location="../secret")
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    path = tmp_path / "model" / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(Exception, match="External data path"):
        offloaded.InferenceSession(path)


BAD: dict[str, Callable[[Any], Any]] = {
    "no file": lambda library: library.InferenceSession("/nowhere/model.onnx"),
    "no model": lambda library: library.InferenceSession(b"none"),
    "no path": lambda library: library.InferenceSession(3),
    "providers": lambda library: library.InferenceSession(SMALL, providers=3),
    "provider options": lambda library: library.InferenceSession(
        SMALL, providers=["CPUExecutionProvider"], provider_options=[], enable_fallback=0
    ),
    "no input": lambda library: library.InferenceSession(SMALL).run(None, {}),
    "shape": lambda library: library.InferenceSession(SMALL).run(None, {"x": X.T}),
    "type": lambda library: library.InferenceSession(SMALL).run(None, {"x": X.astype("float64")}),
    "output": lambda library: library.InferenceSession(SMALL).run(["z"], {"x": X}),
    "method": lambda library: library.InferenceSession(SMALL).walk(),
    "option": lambda library: setattr(library.SessionOptions(), "threads", 1),
    "option's value": lambda library: setattr(library.SessionOptions(), "intra_op_num_threads", "many"),
    "entry": lambda library: library.SessionOptions().get_session_config_entry("none"),
    "key": lambda library: library.SessionOptions().add_session_config_entry("", "1"),
    "copy": lambda library: copy.deepcopy(library.SessionOptions()),
    "device": lambda library: library.OrtValue.ortvalue_from_numpy(X, "cuda", 0),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_reported_as_onnxruntime_does(offloaded: Any, name: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever it is, it is the same
        BAD[name](onnxruntime)
    with pytest.raises(type(expected.value)) as found:
        BAD[name](offloaded)
    assert type(found.value) is type(expected.value)
    if name not in ("option", "option's value", "copy"):
        assert str(found.value) == str(expected.value)


def test_cuda_without_a_gpu_is_reported_as_onnxruntime_does(offloaded: Any) -> None:
    def opened(library: Any) -> tuple[list[str], Any]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made = library.InferenceSession(
                SMALL, providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
            )
        return [str(each.message) for each in told], made.get_providers()

    assert opened(offloaded) == opened(onnxruntime)
    assert opened(offloaded)[1] == ["CPUExecutionProvider"] and "CUDAExecutionProvider" in opened(offloaded)[0][0]
    assert offloaded.get_available_providers() == onnxruntime.get_available_providers()
    assert offloaded.get_device() == onnxruntime.get_device() == "CPU"


def test_options_have_their_effect_in_the_acceptor(offloaded: Any, tmp_path: Path) -> None:
    def shapes(library: Any) -> Any:
        options = library.SessionOptions()
        options.log_severity_level = 3
        options.execution_mode = library.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(tmp_path / f"{library is offloaded}.onnx")
        options.add_free_dimension_override_by_name("batch", 5)
        options.add_session_config_entry("session.disable_prepacking", "1")
        assert options.get_session_config_entry("session.disable_prepacking") == "1"
        assert options.graph_optimization_level == library.GraphOptimizationLevel.ORT_ENABLE_BASIC
        made = library.InferenceSession(model_of(constant=True).SerializeToString(), options)
        assert made.get_session_options().optimized_model_filepath == options.optimized_model_filepath
        return [each.shape for each in (*made.get_inputs(), *made.get_outputs())]

    assert shapes(offloaded) == shapes(onnxruntime) == [[5, 4], [5, 3], [5, 3]]
    written = [onnx.load(tmp_path / f"{name}.onnx") for name in (True, False)]
    assert written[0].graph == written[1].graph and "Constant" not in {node.op_type for node in written[0].graph.node}


def test_an_initializer_from_a_value_in_the_acceptor(offloaded: Any) -> None:
    weights = np.arange(12, dtype="float32").reshape(4, 3)

    def result(library: Any) -> Any:
        value = library.OrtValue.ortvalue_from_numpy(weights)
        options = library.SessionOptions()
        options.add_initializer("w", value)
        return library.InferenceSession(SMALL, options).run(["h"], {"x": X})

    equal(result(offloaded), result(onnxruntime))
    assert np.allclose(result(offloaded)[0], X @ weights)


def test_options_of_a_run(session: Session, offloaded: Any) -> None:
    options = offloaded.RunOptions()
    options.only_execute_path_to_fetches = True
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    remote = offloaded.InferenceSession(SMALL)
    before = trips(session)
    equal(remote.run(["h"], {"x": X}, options), onnxruntime.InferenceSession(SMALL).run(["h"], {"x": X}))
    assert trips(session) - before == 1
    options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        remote.run(["h"], {"x": X}, options)


def test_values_and_bindings_stay_in_the_acceptor(session: Session, offloaded: Any) -> None:
    expected = onnxruntime.InferenceSession(SMALL).run(["y"], {"x": X})
    remote = offloaded.InferenceSession(SMALL)
    value = offloaded.OrtValue.ortvalue_from_numpy(X)
    assert isinstance(value, onnxruntime.OrtValue) and value.shape() == [5, 4] and value.data_type() == "tensor(float)"
    before = trips(session)
    (result,) = remote.run_with_ort_values(["y"], {"x": value})
    assert trips(session) - before == 1 and type(result) is type(value)
    equal([result.numpy()], expected)
    assert np.asarray(result).tobytes() == expected[0].tobytes()
    bindings = [remote.io_binding(), offloaded.IOBinding(remote)]
    for binding in bindings:
        binding.bind_cpu_input("x", X)
        binding.bind_output("y", "cpu")
        remote.run_with_iobinding(binding)
        equal(binding.copy_outputs_to_cpu(), expected)
        equal([binding.get_outputs()[0].numpy()], expected)
        binding.bind_input("x", "cpu", 0, np.float32, value.shape(), value.data_ptr())
        target = offloaded.OrtValue.ortvalue_from_shape_and_type([5, 3], np.float32)
        binding.bind_output("y", "cpu", 0, np.float32, [5, 3], target.data_ptr())
        remote.run_with_iobinding(binding)
        equal([target.numpy()], expected)
        for bind in (binding.bind_input, binding.bind_output):
            with pytest.raises(ValueError, match=rf"\b{X.ctypes.data}\b.*\bOrtValue\b"):
                bind("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)


def test_asynchronous_runs_call_back_here(offloaded: Any) -> None:
    def results(library: Any, given: Any) -> tuple[Any, str, bool]:
        done, mine = threading.Event(), object()
        told: list[Any] = []

        def callback(*arguments: Any) -> None:
            told.extend(arguments)
            done.set()

        made = library.InferenceSession(SMALL)
        made.run_async(None, {"x": given}, callback, mine)
        assert done.wait(120)
        return told[0], told[2], told[1] is mine

    found, expected = results(offloaded, X), results(onnxruntime, X)
    equal(found[0], expected[0])
    assert found[1:] == expected[1:] == ("", True)
    assert results(offloaded, X.T)[0] == [] and "invalid dimensions" in results(offloaded, X.T)[1]


def test_what_profiling_writes_is_written_here(offloaded: Any, tmp_path: Path) -> None:
    options = offloaded.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "mine")
    remote = offloaded.InferenceSession(SMALL, options)
    remote.run(None, {"x": X})
    name = remote.end_profiling()
    assert Path(name).parent == tmp_path and Path(name).name.startswith("mine")
    assert "model_run" in {each["name"] for each in json.loads(Path(name).read_text())}
    assert (
        offloaded.InferenceSession(SMALL).end_profiling() == onnxruntime.InferenceSession(SMALL).end_profiling() == ""
    )


def test_a_class_of_the_programs_own_derived_from_it(offloaded: Any) -> None:
    class Doubled(offloaded.InferenceSession):  # type: ignore[misc]
        def __init__(self, data: bytes, factor: int) -> None:
            self.factor = factor
            super().__init__(data, providers=["CPUExecutionProvider"])

        def doubled(self, given: Any) -> tuple[Any, int]:
            return self.run(["y"], {"x": given})[0] * self.factor, os.getpid()

    made = Doubled(SMALL, 2)
    found, process = made.doubled(X)
    expected = onnxruntime.InferenceSession(SMALL).run(["y"], {"x": X})[0] * 2
    assert found.tobytes() == expected.tobytes() and process != os.getpid() and made.get_inputs()[0].name == "x"


def test_options_derived_by_the_program(offloaded: Any) -> None:
    class Mine(offloaded.SessionOptions):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            super().__init__()
            self.add_free_dimension_override_by_name("batch", size)

    made = offloaded.InferenceSession(SMALL, Mine(2))
    assert made.get_inputs()[0].shape == [2, 4]
    with pytest.raises(TypeError, match=r"\bsess_options\b.*\bstr\b.*\bonnxruntime\.SessionOptions\b"):
        offloaded.InferenceSession(SMALL, "fast")


def test_threads_of_the_program_run_at_the_same_time(offloaded: Any) -> None:
    remote = offloaded.InferenceSession(SMALL)
    inputs = [np.full((3, 4), number, np.float32) for number in range(8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda given: remote.run(None, {"x": given}), inputs))
    local = onnxruntime.InferenceSession(SMALL)
    for given, results in zip(inputs, found, strict=True):
        equal(results, local.run(None, {"x": given}))


def test_sessions_move_to_another_acceptor(tmp_path: Path) -> None:
    path = tmp_path / "split.onnx"
    onnx.save(model_of(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    acceptors = LocalAcceptors()
    with contextlib.closing(acceptors), contextlib.closing(Session.open(CONFIG, connector=acceptors)) as session:
        offloaded = under_rules(session)
        options = offloaded.SessionOptions()
        options.intra_op_num_threads = 1
        sessions = [offloaded.InferenceSession(SMALL, options), offloaded.InferenceSession(path)]
        expected = [each.run(None, {"x": X}) for each in sessions]
        path.unlink()
        session.switch()
        session.switch()
        for each, before in zip(sessions, expected, strict=True):
            equal(each.run(None, {"x": X}), before)
        binding = sessions[0].io_binding()
        with pytest.raises(OffloadError, match=r"\bonnxruntime\.capi\."):
            session.switch()
        del binding
        gc.collect()
        equal(sessions[0].run(None, {"x": X}), expected[0])


def test_nothing_is_left_in_the_acceptor(session: Session, offloaded: Any) -> None:
    gc.collect()
    offloaded.get_device()
    before = session.stats()["acceptor"]["objects"]["held"]
    for _ in range(20):
        remote = offloaded.InferenceSession(SMALL)
        remote.run_with_ort_values(None, {"x": offloaded.OrtValue.ortvalue_from_numpy(X)})
    del remote
    gc.collect()
    offloaded.get_device()
    assert session.stats()["acceptor"]["objects"]["held"] == before


@pytest.mark.parametrize("name", ["NodeArg", "SessionOptions", "GraphOptimizationLevel", "OrtValue", "IOBinding"])
def test_no_unfinished_object_is_made_of_an_acceptors_answer(offloaded: Any, session: Session, name: str) -> None:
    """To use one that was made without its constructor ends the process."""
    kind = getattr(onnxruntime, name)
    codec = client.of(session).codec
    options = offloaded.SessionOptions()
    options.graph_optimization_level = offloaded.GraphOptimizationLevel.ORT_ENABLE_ALL
    offloaded.InferenceSession(SMALL, options)
    module, qualified = kind.__module__.encode(), kind.__qualname__.encode()
    named = b"".join(b"\x8c" + bytes([len(each)]) + each for each in (module, qualified)) + b"\x93"
    for stream in (b"\x80\x04" + named + b")\x81.", b"\x80\x04" + named + b")R."):
        with pytest.raises(RefusedError):
            codec.loads({"v": 1}, [stream])


def test_an_unmodified_program_says_the_same(tmp_path: Path) -> None:
    project = Project(tmp_path, "inference")
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    same(local, project.offloaded("main.py", split="rules"))
