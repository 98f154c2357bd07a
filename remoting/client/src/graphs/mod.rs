//! Graphs: what their nodes do, their conditions, and executable graphs, which the worker launches by one command.
//!
//! The rules of captures and of a graph's shape are in the crate `graphs`, which the software GPU uses, too. Called by
//! `abi`, which also records into a graph what is called while a stream captures.

pub mod conditions;
pub mod executable;
pub mod graph;
