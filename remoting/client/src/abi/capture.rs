//! The entry points for stream capture, such as `cuStreamBeginCapture`.

use crate::Code;
use crate::boundary::DefaultStream;
use crate::boundary::{input, inputs, write, write_optional};
use crate::graphs::graph::{GRAPHS, Work, for_capture};
use crate::objects::stream;
use crate::session::lock;
use crate::{exports, stream_exports};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::{CUgraph, CUgraphEdgeData, CUgraphNode, CUstream};
use graphs::{Dependency, Edge, Mode, SharedGraph, State, exchange_mode};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::Mutex;
use std::thread;

exports! {
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        let given = Mode::from_code(input(mode.cast_const())?)?;
        write(mode, exchange_mode(given).code())
    }
}

stream_exports! {
    fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz(stream: CUstream) |default| {
        begin(stream, default, SharedGraph::default(), &[], CU_STREAM_CAPTURE_MODE_GLOBAL)
    }

    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: c_uint) |default| {
        begin(stream, default, SharedGraph::default(), &[], mode)
    }

    fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz(
        stream: CUstream,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        mode: c_uint,
    ) |default| {
        let graph = GRAPHS.graph(graph.addr())?;
        begin(stream, default, graph, &dependencies(nodes, edges, count)?, mode)
    }

    fn cuStreamEndCapture | cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut CUgraph) |default| {
        let stream_id = stream::find(stream, default)?.stream_id;
        let ended = GRAPHS.end_capture(stream_id);
        // A program that captures into its own graph already has the handle.
        if !graph.is_null() {
            write(graph, without_provenance_mut(ended.unwrap_or(0)))?;
        }
        ended.map(drop)
    }

    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(stream: CUstream, status: *mut c_uint) |default| {
        tell(stream, default, Answers { status, ..NO_ANSWERS })
    }

    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(
        stream: CUstream,
        status: *mut c_uint,
        id: *mut u64,
    ) |default| {
        tell(stream, default, Answers { status, id, ..NO_ANSWERS })
    }

    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        stream: CUstream,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode,
        count: *mut usize,
    ) |default| {
        tell(stream, default, Answers { status, id, graph, dependencies, count, ..NO_ANSWERS })
    }

    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        stream: CUstream,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode,
        edges: *mut *const CUgraphEdgeData,
        count: *mut usize,
    ) |default| {
        tell(stream, default, Answers { status, id, graph, dependencies, edges, count })
    }

    fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz(
        stream: CUstream,
        nodes: *const CUgraphNode,
        count: usize,
        flags: c_uint,
    ) |default| {
        update(stream, default, &dependencies(nodes, null(), count)?, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz(
        stream: CUstream,
        nodes: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        flags: c_uint,
    ) |default| {
        update(stream, default, &dependencies(nodes, edges, count)?, flags)
    }
}

/// Reads a list of nodes, and their edges if the program passes any.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer, or an edge that CUDA does not define.
///
/// # Safety
/// The lists are valid for reads of `count` values; the list of edges may be null.
pub unsafe fn dependencies(
    nodes: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
) -> Result<Vec<Dependency>, Code> {
    // SAFETY: as the caller vouches.
    let (nodes, edges) = unsafe {
        let edges = if edges.is_null() { vec![CUgraphEdgeData::default(); count] } else { inputs(edges, count)? };
        (inputs(nodes, count)?, edges)
    };
    let pairs = nodes.iter().zip(&edges);
    pairs.map(|(node, data)| Ok(Dependency { on: node.addr(), edge: Edge::try_from(data)? })).collect()
}

fn begin(
    stream: CUstream,
    default: DefaultStream,
    graph: SharedGraph<Work>,
    after: &[Dependency],
    mode: c_uint,
) -> Result<(), Code> {
    let target = stream::find(stream, default)?;
    let (mode, thread) = (Mode::from_code(mode)?, thread::current().id());
    GRAPHS.with(|captures| captures.begin(for_capture(&target), mode, thread, graph, after))
}

fn update(stream: CUstream, default: DefaultStream, after: &[Dependency], flags: c_uint) -> Result<(), Code> {
    let replace = match flags {
        CU_STREAM_ADD_CAPTURE_DEPENDENCIES => false,
        CU_STREAM_SET_CAPTURE_DEPENDENCIES => true,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let stream_id = stream::find(stream, default)?.stream_id;
    GRAPHS.with(|captures| captures.update(stream_id, after, replace))
}

/// The pointers at which a query stores its results. All but `status` may be null.
struct Answers {
    status: *mut c_uint,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
}

const NO_ANSWERS: Answers = Answers {
    status: null_mut(),
    id: null_mut(),
    graph: null_mut(),
    dependencies: null_mut(),
    edges: null_mut(),
    count: null_mut(),
};

/// The last result of a query for a stream's dependencies. The program may read it until it uses the stream again.
type Told = (Vec<usize>, Vec<CUgraphEdgeData>);
static TOLD: Mutex<Option<HashMap<u64, Told>>> = Mutex::new(None);

unsafe fn tell(stream: CUstream, default: DefaultStream, to: Answers) -> Result<(), Code> {
    let stream = for_capture(&stream::find(stream, default)?);
    if to.status.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let state = GRAPHS.with(|captures| captures.check_query(stream).map(|()| captures.state(stream.id)))?;
    let (number, status, active) = match state {
        State::None => (0, CU_STREAM_CAPTURE_STATUS_NONE, None),
        State::Invalidated { number } => (number, CU_STREAM_CAPTURE_STATUS_INVALIDATED, None),
        State::Active { number, graph, dependencies } => {
            (number, CU_STREAM_CAPTURE_STATUS_ACTIVE, Some((graph, dependencies)))
        }
    };
    // SAFETY: as the caller of the exported function vouches; the result stays valid until the next query.
    unsafe {
        if let Some((graph, dependencies)) = active {
            let has_edges = dependencies.iter().any(|each| each.edge != Edge::default());
            if has_edges && to.edges.is_null() && !to.dependencies.is_null() {
                return Err(CUDA_ERROR_LOSSY_QUERY);
            }
            if !to.graph.is_null() {
                write(to.graph, without_provenance_mut(GRAPHS.handle_of(&graph)))?;
            }
            let mut told = lock(&TOLD);
            let told = told.get_or_insert_default().entry(stream.id).or_default();
            *told = dependencies.iter().map(|each| (each.on, CUgraphEdgeData::from(each.edge))).unzip();
            write_optional(to.dependencies, told.0.as_ptr().cast());
            write_optional(to.edges, if has_edges { told.1.as_ptr() } else { null() });
            write_optional(to.count, told.0.len());
        }
        write_optional(to.id, number);
        write(to.status, status)
    }
}
