//! The work of a stream or of a graph's node.

use super::conditional::{self, Conditional};
use crate::engine::{Fault, computing};
use crate::ffi;
use crate::kernels::launch::Launch;
use crate::memory::copy::{Copy, Fill};
use crate::streams::callback::in_callback;
use crate::streams::stream::Event;
use driverapi::constants::*;
use driverapi::types::CUhostFn;
use graphs::{Memory, MemoryUse, SharedGraph};
use std::sync::Arc;

#[derive(Clone)]
pub enum Work {
    Empty,
    Launch(Arc<Launch>),
    Copy {
        copy: Copy,
        forgets: bool,
    },
    Fill(Fill),
    Host(HostCall),
    /// A child graph.
    Child(SharedGraph<Work>),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    Allocate(Arc<Memory>),
    Free(Arc<Memory>),
    Conditional(Box<Conditional>),
}

/// A function of the program, with the address of its argument.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub function: CUhostFn,
    pub data: usize,
}

impl graphs::Work for Work {
    fn kind(&self) -> u32 {
        match self {
            Work::Launch(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            Work::Copy { .. } => CU_GRAPH_NODE_TYPE_MEMCPY,
            Work::Fill(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            Work::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
            Work::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            Work::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            Work::Wait(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Work::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Work::Allocate(_) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Work::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
            Work::Conditional(_) => CU_GRAPH_NODE_TYPE_CONDITIONAL,
        }
    }

    fn memory(&self) -> Option<(MemoryUse, &Arc<Memory>)> {
        match self {
            Work::Allocate(memory) => Some((MemoryUse::Allocates, memory)),
            Work::Free(memory) => Some((MemoryUse::Frees, memory)),
            _ => None,
        }
    }

    fn child(&self) -> Option<&SharedGraph<Work>> {
        match self {
            Work::Child(child) => Some(child),
            _ => None,
        }
    }

    fn with_child(&self, child: SharedGraph<Work>) -> Work {
        Work::Child(child)
    }

    fn bodies(&self) -> &[SharedGraph<Work>] {
        match self {
            Work::Conditional(conditional) => &conditional.bodies,
            _ => &[],
        }
    }

    fn with_bodies(&self, bodies: Vec<SharedGraph<Work>>) -> Work {
        match self {
            Work::Conditional(conditional) => Work::Conditional(Box::new(conditional.with_bodies(bodies))),
            other => other.clone(),
        }
    }
}

impl Work {
    /// Does the work on a stream's thread. Events and child graphs are not run here: the stream handles events, and a
    /// launch replaces a child graph by its nodes.
    pub fn run(&self) -> Result<(), Fault> {
        match self {
            Work::Launch(launch) => computing(|| launch.run())?,
            Work::Copy { copy, forgets } => computing(|| copy.run(*forgets)),
            Work::Fill(fill) => computing(|| fill.run()),
            Work::Conditional(conditional) => conditional::run(conditional)?,
            Work::Host(HostCall { function, data }) => in_callback(|| {
                if let Some(function) = *function {
                    ffi::call_back(function, *data);
                }
            }),
            // The memory was allocated or freed before the launch.
            Work::Empty | Work::Child(_) | Work::Record(_) | Work::Wait(_) | Work::Allocate(_) | Work::Free(_) => (),
        }
        Ok(())
    }
}
