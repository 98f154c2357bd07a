//! All graphs and captures of a process, by the handles that the program uses.

use crate::capture::{Captures, LaunchEdges, Mode, Stream};
use crate::user_object::UserObjects;
use crate::{Dependency, Graph, Memories, NodeId, Owner, Result, SharedGraph, Work, lock};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

pub struct Registry<W> {
    captures: Mutex<Captures<W>>,
    /// Whether a capture runs or an event was captured. If not, a call need not take the lock of the captures.
    in_use: AtomicBool,
    pub(crate) graphs: RwLock<HashMap<usize, SharedGraph<W>>>,
    /// The graph of each node.
    nodes: RwLock<HashMap<NodeId, SharedGraph<W>>>,
    pub memories: Memories,
    pub(crate) objects: UserObjects,
    /// Creates a handle. Each handle is larger than the earlier ones.
    pub(crate) mint: fn() -> usize,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Replaces the calling thread's capture mode, and returns the previous mode.
pub fn exchange_mode(mode: Mode) -> Mode {
    MODE.try_with(|own| own.replace(mode)).unwrap_or(mode)
}

fn mode() -> Mode {
    MODE.try_with(Cell::get).unwrap_or_default()
}

impl<W: Work> Registry<W> {
    pub fn new(mint: fn() -> usize) -> Self {
        let (graphs, nodes) = (RwLock::default(), RwLock::default());
        let (memories, objects) = (Memories::default(), UserObjects::default());
        Self { captures: Mutex::default(), in_use: AtomicBool::new(false), graphs, nodes, memories, objects, mint }
    }

    fn captures(&self) -> MutexGuard<'_, Captures<W>> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with the captures, locked.
    pub fn with<T>(&self, act: impl FnOnce(&mut Captures<W>) -> T) -> T {
        let mut captures = self.captures();
        let done = act(&mut captures);
        self.in_use.store(!captures.is_idle(), Ordering::Release);
        done
    }

    /// Like [`Self::with`], but returns the default value if there are no captures.
    ///
    /// # Errors
    /// The errors of `act`.
    pub fn ask<T: Default>(&self, act: impl FnOnce(&mut Captures<W>) -> Result<T>) -> Result<T> {
        if self.in_use.load(Ordering::Acquire) { self.with(act) } else { Ok(T::default()) }
    }

    /// Whether a stream captures.
    pub fn is_capturing(&self, stream: u64) -> bool {
        self.ask(|captures| Ok(captures.graph(stream).is_some())).unwrap_or(false)
    }

    /// Checks that the running captures allow the calling thread a call that can disturb them.
    ///
    /// # Errors
    /// The same errors as [`Captures::check_call`].
    pub fn check_call(&self) -> Result<()> {
        self.ask(|captures| captures.check_call(thread::current().id(), mode()))
    }

    /// Adds work to the graph that a stream captures into. Returns `false` if the stream does not capture; then the
    /// caller executes the work.
    ///
    /// # Errors
    /// The same errors as [`Captures::add`].
    pub fn capture(&self, stream: Stream, work: impl FnOnce() -> Result<W>) -> Result<bool> {
        self.capture_launch(stream, &LaunchEdges::default(), work)
    }

    /// Like [`Self::capture`], for a launch, whose attributes may add edges.
    ///
    /// # Errors
    /// The same errors as [`Captures::add`].
    pub fn capture_launch(
        &self,
        stream: Stream,
        edges: &LaunchEdges,
        work: impl FnOnce() -> Result<W>,
    ) -> Result<bool> {
        let added = self.ask(|captures| {
            let node = captures.add(stream, (self.mint)(), edges, work)?;
            Ok(node.zip(captures.graph(stream.id)))
        })?;
        let Some((node, graph)) = added else { return Ok(false) };
        self.note(node, graph);
        Ok(true)
    }

    /// Ends a stream's capture, and returns the handle of its graph.
    ///
    /// # Errors
    /// The same errors as [`Captures::end`].
    pub fn end_capture(&self, stream: u64) -> Result<usize> {
        let graph = self.with(|captures| captures.end(stream, thread::current().id()))?;
        Ok(self.handle_of(&graph))
    }

    /// Returns the graph with this handle.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the handle is not that of a graph.
    pub fn graph(&self, handle: usize) -> Result<SharedGraph<W>> {
        get(&self.graphs, handle)
    }

    /// Returns the graph that contains a node.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the handle is not that of a node.
    pub fn graph_of(&self, node: NodeId) -> Result<SharedGraph<W>> {
        get(&self.nodes, node)
    }

    /// Returns a node's work.
    ///
    /// # Errors
    /// The same errors as [`Self::graph_of`].
    pub fn work_of(&self, node: NodeId) -> Result<W> {
        Ok(lock(&self.graph_of(node)?).node(node)?.work.clone())
    }

    /// Returns the handle of a graph, and creates the handle if the graph has none.
    pub fn handle_of(&self, graph: &SharedGraph<W>) -> usize {
        let mut graphs = self.graphs.write().unwrap_or_else(PoisonError::into_inner);
        let known = graphs.iter().find(|(_, other)| Arc::ptr_eq(other, graph)).map(|(&handle, _)| handle);
        known.unwrap_or_else(|| {
            let handle = (self.mint)();
            graphs.insert(handle, Arc::clone(graph));
            handle
        })
    }

    /// Destroys a graph: removes its handle and those of its nodes and child graphs.
    ///
    /// # Errors
    /// The same errors as [`Self::graph`], also if a node owns the graph (CUDA documents no code for this).
    pub fn destroy(&self, handle: usize) -> Result<()> {
        let mut graphs = self.graphs.write().unwrap_or_else(PoisonError::into_inner);
        let own = |graph: &&SharedGraph<W>| lock(graph).owner == Owner::Program;
        let graph = Arc::clone(graphs.get(&handle).filter(own).ok_or(CUDA_ERROR_INVALID_VALUE)?);
        graphs.remove(&handle);
        drop(graphs);
        self.forget_nodes(&graph);
        Ok(())
    }

    /// Removes the handles of a graph's nodes and of its child graphs.
    pub fn forget_nodes(&self, graph: &SharedGraph<W>) {
        for (id, node) in lock(graph).nodes() {
            self.nodes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
            self.forget_inside(&node.work);
        }
    }

    fn note(&self, node: NodeId, graph: SharedGraph<W>) {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner).insert(node, graph);
    }

    /// Adds a node to a graph. If the work contains a graph of the program, the node owns that graph from now on.
    ///
    /// # Errors
    /// The same errors as [`Graph::add`], and `CUDA_ERROR_INVALID_VALUE` if a graph would contain itself.
    pub fn add(&self, graph: &SharedGraph<W>, work: W, after: &[Dependency]) -> Result<NodeId> {
        let id = (self.mint)();
        self.give(graph, &work.clone(), || lock(graph).add(id, work, after))?;
        self.note(id, Arc::clone(graph));
        Ok(id)
    }

    /// Removes a node from its graph.
    ///
    /// # Errors
    /// The same errors as [`Self::graph_of`].
    pub fn remove(&self, node: NodeId) -> Result<()> {
        let removed = lock(&self.graph_of(node)?).remove(node)?;
        self.nodes.write().unwrap_or_else(PoisonError::into_inner).remove(&node);
        self.forget_inside(&removed.work);
        Ok(())
    }

    /// Returns a copy of a graph, with copies of its child graphs.
    pub fn copy(&self, graph: &Graph<W>) -> SharedGraph<W> {
        let copy = |work: &W| match work.child() {
            Some(child) => work.with_child(self.embed(&lock(child))),
            None if work.bodies().is_empty() => work.clone(),
            None => work.with_bodies(work.bodies().iter().map(|body| self.embed(&lock(body))).collect()),
        };
        let copied: SharedGraph<W> = Arc::new(Mutex::new(graph.clone_with(self.mint, copy)));
        let ids: Vec<NodeId> = lock(&copied).nodes().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.note(id, Arc::clone(&copied)));
        copied
    }
}

fn get<W>(table: &RwLock<HashMap<usize, SharedGraph<W>>>, handle: usize) -> Result<SharedGraph<W>> {
    let found = table.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned();
    found.ok_or(CUDA_ERROR_INVALID_VALUE)
}
