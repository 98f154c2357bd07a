//! The entry points for stream capture, such as `cuStreamBeginCapture`.

use super::default_stream::DefaultStream;
use super::entry::{entry_points, stream_entry_points};
use super::handles::{handle, id};
use crate::driver::driver;
use crate::ffi::{In, Out, R};
use crate::work::Work;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Dependency, Edge, Mode, SharedGraph, State, exchange_mode};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Returns the dependencies that a program lists, each with its edge data. `edges` may be null.
pub fn dependencies(nodes: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize) -> R<Vec<Dependency>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let edges = if edges.is_null() { vec![CUgraphEdgeData::default(); count] } else { edges.list(count)? };
    let nodes = nodes.list(count)?;
    let pairs = nodes.into_iter().zip(&edges);
    pairs.map(|(node, data)| Ok(Dependency { on: id(node), edge: Edge::try_from(data)? })).collect()
}

fn begin(
    default: DefaultStream,
    stream: CUstream,
    graph: SharedGraph<Work>,
    after: &[Dependency],
    mode: CUstreamCaptureMode,
) -> R {
    let stream = default.resolve(stream)?;
    let mode = Mode::from_code(mode)?;
    let thread = thread::current().id();
    driver()?.graphs.with(|captures| captures.begin(stream.for_capture(), mode, thread, graph, after))
}

/// The nodes and edges of the last query about a stream's dependencies. CUDA lets the program read these arrays until
/// the next call on the stream.
type Told = (Vec<usize>, Vec<CUgraphEdgeData>);
static TOLD: Mutex<Option<HashMap<u64, Told>>> = Mutex::new(None);

/// The pointers that a query writes its results to. Each may be null.
#[derive(Clone, Copy)]
struct Answers {
    status: Out<CUstreamCaptureStatus>,
    number: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    edges: Out<*const CUgraphEdgeData>,
    count: Out<usize>,
}

impl Answers {
    fn of_status(status: Out<CUstreamCaptureStatus>, number: Out<u64>) -> Answers {
        Answers { status, number, graph: absent(), dependencies: absent(), edges: absent(), count: absent() }
    }
}

fn absent<T>() -> Out<T> {
    Out::at(std::ptr::null_mut())
}

fn info(default: DefaultStream, stream: CUstream, out: Answers) -> R {
    let driver = driver()?;
    let stream = default.resolve(stream)?.for_capture();
    out.status.required()?;
    let state = driver.graphs.with(|captures| {
        captures.check_query(stream)?;
        R::Ok(captures.state(stream.id))
    })?;
    let (number, graph, dependencies) = match state {
        State::None => {
            out.number.set_if_wanted(0);
            return out.status.set(CU_STREAM_CAPTURE_STATUS_NONE);
        }
        State::Invalidated { number } => {
            out.number.set_if_wanted(number);
            return out.status.set(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        }
        State::Active { number, graph, dependencies } => (number, graph, dependencies),
    };
    let has_edges = dependencies.iter().any(|each| each.edge != Edge::default());
    if has_edges && out.edges.is_null() && !out.dependencies.is_null() {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    out.number.set_if_wanted(number);
    if !out.graph.is_null() {
        out.graph.set(handle(driver.graphs.handle_of(&graph)))?;
    }
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let told = told.get_or_insert_default().entry(stream.id).or_default();
    *told = dependencies.iter().map(|each| (each.on, CUgraphEdgeData::from(each.edge))).unzip();
    out.dependencies.set_if_wanted(told.0.as_ptr().cast());
    out.edges.set_if_wanted(if has_edges { told.1.as_ptr() } else { std::ptr::null() });
    out.count.set_if_wanted(told.0.len());
    out.status.set(CU_STREAM_CAPTURE_STATUS_ACTIVE)
}

fn update(default: DefaultStream, stream: CUstream, after: &[Dependency], flags: c_uint) -> R {
    let replace = match flags {
        CU_STREAM_ADD_CAPTURE_DEPENDENCIES => false,
        CU_STREAM_SET_CAPTURE_DEPENDENCIES => true,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let stream = default.resolve(stream)?.for_capture().id;
    driver()?.graphs.with(|captures| captures.update(stream, after, replace))
}

entry_points! {
    fn cuThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) {
        driver()?;
        let given = Mode::from_code(mode.get()?)?;
        mode.set(exchange_mode(given).code())
    }
}

stream_entry_points! { default;
    /// The oldest form has no mode argument and uses the strictest mode.
    fn cuStreamBeginCapture / cuStreamBeginCapture_ptsz(stream: CUstream) {
        begin(default, stream, SharedGraph::default(), &[], CU_STREAM_CAPTURE_MODE_GLOBAL)
    }

    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: CUstreamCaptureMode) {
        begin(default, stream, SharedGraph::default(), &[], mode)
    }

    fn cuStreamBeginCaptureToGraph / cuStreamBeginCaptureToGraph_ptsz(
        stream: CUstream, graph: CUgraph, nodes: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize,
        mode: CUstreamCaptureMode,
    ) {
        let graph = driver()?.graphs.graph(id(graph))?;
        begin(default, stream, graph, &dependencies(nodes, edges, count)?, mode)
    }

    fn cuStreamEndCapture / cuStreamEndCapture_ptsz(stream: CUstream, out: Out<CUgraph>) {
        let stream = default.resolve(stream)?.for_capture().id;
        let ended = driver()?.graphs.end_capture(stream);
        // A program that captures into its own graph already has the handle.
        out.set_if_wanted(handle(ended.unwrap_or(0)));
        ended.map(drop)
    }

    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz(stream: CUstream, status: Out<CUstreamCaptureStatus>) {
        info(default, stream, Answers::of_status(status, absent()))
    }

    fn cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, number: Out<u64>,
    ) {
        info(default, stream, Answers::of_status(status, number))
    }

    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, number: Out<u64>, graph: Out<CUgraph>,
        dependencies: Out<*const CUgraphNode>, count: Out<usize>,
    ) {
        info(default, stream, Answers { graph, dependencies, count, ..Answers::of_status(status, number) })
    }

    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, number: Out<u64>, graph: Out<CUgraph>,
        dependencies: Out<*const CUgraphNode>, edges: Out<*const CUgraphEdgeData>, count: Out<usize>,
    ) {
        info(default, stream, Answers { status, number, graph, dependencies, edges, count })
    }

    fn cuStreamUpdateCaptureDependencies / cuStreamUpdateCaptureDependencies_ptsz(
        stream: CUstream, nodes: In<CUgraphNode>, count: usize, flags: c_uint,
    ) {
        update(default, stream, &dependencies(nodes, In::at(std::ptr::null()), count)?, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2 / cuStreamUpdateCaptureDependencies_v2_ptsz(
        stream: CUstream, nodes: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize, flags: c_uint,
    ) {
        update(default, stream, &dependencies(nodes, edges, count)?, flags)
    }
}
