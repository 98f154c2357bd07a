//! Executable graphs and their launches.

use super::conditional;
use super::item::Work;
use crate::check::{self, Operation};
use crate::engine::Fault;
use crate::ffi::R;
use crate::process::handles;
use crate::streams::queue::Marker;
use crate::streams::stream::Stream;
use driverapi::constants::*;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use graphs::{Backed, Graph, Registry, SharedGraph, steps};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The work of a graph's node, and the overlap checker's operation for it.
type Piece = (Work, Option<Arc<Operation>>);

fn run((work, checked): &Piece) -> Result<(), Fault> {
    match checked {
        None => work.run(),
        Some(operation) => check::during(Arc::clone(operation), || work.run()),
    }
}

/// An executable graph: a copy of a graph. Later changes to the original graph do not affect it.
pub struct Executable {
    pub id: usize,
    pub flags: u64,
    pub graph: SharedGraph<Work>,
    /// The end of the latest launch. A new launch waits for it, so launches of one executable do not overlap.
    last: Mutex<Option<Marker>>,
    /// The memory that the graph's allocation nodes use.
    _backed: Vec<Backed>,
}

impl Executable {
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a cycle or unknown flags, `CUDA_ERROR_NOT_SUPPORTED` if the device shall launch
    /// the graph, `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn new(registry: &Registry<Work>, graph: &Graph<Work>, flags: u64) -> R<Executable> {
        const KNOWN: u32 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
            | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
            | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        if flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if flags & !u64::from(KNOWN) != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        graph.check_not_moved()?;
        steps(graph)?;
        graphs::check_bodies(graph)?;
        let (backed, graph) = (registry.memories.back(graph)?, registry.copy(graph));
        Ok(Executable { id: handles::mint(), flags, graph, last: Mutex::new(None), _backed: backed })
    }

    /// Queues the whole graph in a stream. All works between two events are one operation of the stream, so a graph
    /// needs little more room in the queue than a kernel launch.
    pub fn launch(&self, registry: &Registry<Work>, stream: &Stream, start: Instant) -> R {
        if registry.is_capturing(stream.for_capture().id) {
            if graphs::lock(&self.graph).has_conditions() {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
            let child = || Ok(Work::Child(registry.embed(&graphs::lock(&self.graph))));
            return registry.capture(stream.for_capture(), child).map(drop);
        }
        let graph = graphs::lock(&self.graph);
        let frees_first = self.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
        registry.memories.launch(&graph, frees_first)?;
        // The queue must not own memory, because work that releases memory would then wait for itself.
        let steps = steps(&graph)?;
        let mut assigned = Vec::new();
        conditional::conditions_of(&graph, &mut assigned);
        drop(graph);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = last.take() {
            stream.enqueue_after(vec![before], || Ok(()))?;
        }
        if !assigned.is_empty() {
            stream.enqueue(move || {
                assigned.iter().for_each(|condition| condition.assign_default());
                Ok(())
            })?;
        }
        let checked = self.checked(stream, &steps);
        let works = steps.into_iter().zip(checked).filter_map(|(step, checked)| Some((step.work?, checked)));
        let works: Vec<Piece> = works.filter(|(work, _)| graphs::Work::memory(work).is_none()).collect();
        let is_event = |(work, _): &Piece| matches!(work, Work::Record(_) | Work::Wait(_));
        for piece in works.chunk_by(|a, b| !is_event(a) && !is_event(b)) {
            match piece {
                [(Work::Record(event), _)] => event.record_in_graph(stream, start)?,
                [(Work::Wait(event), _)] => event.hold(stream)?,
                works => {
                    let works = works.to_vec();
                    stream.enqueue(move || works.iter().try_for_each(run))?;
                }
            }
        }
        *last = Some(stream.end());
        Ok(())
    }

    /// Begins the steps in the overlap checker. Returns an operation for each step, or `None` for each if there is no
    /// checker.
    fn checked(&self, stream: &Stream, steps: &[graphs::Step<Work>]) -> Vec<Option<Arc<Operation>>> {
        let Some(checker) = check::checker() else { return vec![None; steps.len()] };
        let as_checked = |step: &graphs::Step<Work>| check::Step {
            after: step.after.iter().map(|(before, _)| *before).collect(),
            records: if let Some(Work::Record(event)) = &step.work { Some(event.id) } else { None },
            waits: if let Some(Work::Wait(event)) = &step.work { Some(event.id) } else { None },
        };
        let steps: Vec<_> = steps.iter().map(as_checked).collect();
        checker.graph(self.id, &stream.place_now(), &steps).into_iter().map(Some).collect()
    }

    /// Waits for the latest launch if the graph owns memory or user objects.
    pub fn wait_before_release(&self) {
        let graph = graphs::lock(&self.graph);
        let uses = graph.uses_memory() || graph.holds_objects();
        drop(graph);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(marker) = last.filter(|_| uses) {
            marker.wait();
        }
    }
}
