//! Graphs: the work of their nodes, their conditions, and executable graphs, which the worker launches by one command.
//!
//! The crate `graphs`, which the software GPU uses too, implements captures and the edges of graphs. The caller is
//! `abi`, which also adds calls to a graph while a stream is capturing.

pub mod conditions;
pub mod executable;
pub mod graph;
