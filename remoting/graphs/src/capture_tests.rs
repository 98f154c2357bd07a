use super::*;
use crate::Graph;
use std::thread;

struct Bed {
    captures: Captures<&'static str>,
    next: NodeId,
}

const A: Stream = Stream { id: 10, context: 1, kind: StreamKind::NonBlocking };
const B: Stream = Stream { id: 11, context: 1, kind: StreamKind::NonBlocking };
const BLOCKING: Stream = Stream { id: 12, context: 1, kind: StreamKind::Blocking };
const C: Stream = Stream { id: 14, context: 1, kind: StreamKind::NonBlocking };
const LEGACY: Stream = Stream { id: 13, context: 1, kind: StreamKind::Legacy };
const EVENT: u64 = 20;
const OTHER: u64 = 21;

impl Bed {
    fn new() -> Bed {
        Bed { captures: Captures::default(), next: 100 }
    }

    fn begin(&mut self, stream: Stream, mode: Mode) -> Result<()> {
        self.captures.begin(stream, mode, thread::current().id(), SharedGraph::default(), &[])
    }

    fn add(&mut self, stream: Stream, work: &'static str) -> Result<Option<NodeId>> {
        self.launch(stream, work, &LaunchEdges::default())
    }

    fn launch(&mut self, stream: Stream, work: &'static str, edges: &LaunchEdges) -> Result<Option<NodeId>> {
        self.next += 1;
        self.captures.add(stream, self.next, edges, || Ok(work))
    }

    /// Ends the capture. Returns the work of each node, with the work of the nodes that it depends on.
    fn end(&mut self, stream: Stream) -> Result<Vec<(&'static str, Vec<&'static str>)>> {
        let graph = self.captures.end(stream.id, thread::current().id())?;
        let graph: &Graph<_> = &lock(&graph);
        let name = |id| graph.node(id).unwrap().work;
        let waits = |id| graph.node(id).unwrap().dependencies().iter().map(|each| name(each.on)).collect();
        Ok(graph.nodes().map(|(id, node)| (node.work, waits(id))).collect())
    }

    fn is_invalid(&self, stream: Stream) -> bool {
        matches!(self.captures.state(stream.id), State::Invalidated { .. })
    }
}

#[test]
fn work_of_a_stream_is_a_chain_and_work_of_others_is_theirs() {
    let mut bed = Bed::new();
    assert_eq!(bed.add(A, "before"), Ok(None));
    bed.begin(A, Mode::Global).unwrap();
    assert!(bed.add(A, "one").unwrap().is_some());
    assert_eq!(bed.add(B, "elsewhere"), Ok(None));
    bed.add(A, "two").unwrap();
    assert_eq!(bed.end(A), Ok(vec![("one", vec![]), ("two", vec!["one"])]));
    assert_eq!(bed.add(A, "after"), Ok(None));
    assert!(bed.captures.members.is_empty());
}

#[test]
fn events_fork_and_join() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.add(A, "first").unwrap();
    assert_eq!(bed.captures.record(EVENT, A), Ok(true));
    assert_eq!(bed.captures.wait(B, EVENT), Ok(true));
    bed.add(B, "side").unwrap();
    bed.add(A, "main").unwrap();
    bed.captures.record(OTHER, B).unwrap();
    bed.captures.wait(A, OTHER).unwrap();
    bed.add(A, "last").unwrap();
    let graph = bed.end(A).unwrap();
    assert_eq!(graph[1], ("side", vec!["first"]));
    assert_eq!(graph[3], ("last", vec!["main", "side"]));
}

#[test]
fn an_unjoined_stream_ends_the_capture_with_its_code() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.add(A, "first").unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    bed.add(B, "side").unwrap();
    assert_eq!(bed.end(B).err(), Some(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
    assert_eq!(bed.end(A).err(), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    bed.begin(A, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    bed.add(B, "side").unwrap();
    assert_eq!(bed.end(A).err(), Some(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    assert_eq!(bed.add(B, "free again"), Ok(None));
}

#[test]
fn a_capture_begins_once_and_not_in_the_legacy_stream() {
    let mut bed = Bed::new();
    assert_eq!(bed.begin(LEGACY, Mode::Relaxed), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(bed.end(A).err(), Some(CUDA_ERROR_ILLEGAL_STATE));
    bed.begin(A, Mode::Global).unwrap();
    assert_eq!(bed.begin(A, Mode::Global), Err(CUDA_ERROR_ILLEGAL_STATE));
    assert!(!bed.is_invalid(A));
}

#[test]
fn captures_neither_merge_nor_reach_outside() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.begin(B, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    assert_eq!(bed.captures.wait(B, EVENT), Err(CUDA_ERROR_STREAM_CAPTURE_MERGE));
    assert!(bed.is_invalid(A) && bed.is_invalid(B));
    assert_eq!(bed.add(A, "late"), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!((bed.end(A).is_err(), bed.end(B).is_err()), (true, true));

    bed.begin(A, Mode::Global).unwrap();
    assert_eq!(bed.captures.wait(A, OTHER), Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
    assert!(bed.is_invalid(A));
}

#[test]
fn a_captured_event_is_not_for_the_program_until_it_is_recorded_again() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.end(A).unwrap();
    assert_eq!(bed.captures.check_event(EVENT), Err(CUDA_ERROR_CAPTURED_EVENT));
    assert_eq!(bed.captures.wait(B, EVENT), Err(CUDA_ERROR_CAPTURED_EVENT));
    assert_eq!(bed.captures.record(EVENT, B), Ok(false));
    assert_eq!(bed.captures.check_event(EVENT), Ok(()));
    assert!(bed.captures.is_idle());
}

#[test]
fn the_legacy_stream_waits_for_no_captured_blocking_stream() {
    let mut bed = Bed::new();
    bed.begin(BLOCKING, Mode::Relaxed).unwrap();
    assert_eq!(bed.captures.check_query(LEGACY), Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
    assert!(!bed.is_invalid(BLOCKING));
    assert_eq!(bed.add(LEGACY, "work"), Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
    assert!(bed.is_invalid(BLOCKING));
    assert!(bed.end(BLOCKING).is_err());
    bed.begin(A, Mode::Global).unwrap();
    assert_eq!(bed.add(LEGACY, "work"), Ok(None), "a non-blocking stream is not waited for");
}

#[test]
fn modes_forbid_calls_of_this_thread_and_of_others() {
    let (here, elsewhere) = (thread::current().id(), thread::spawn(|| thread::current().id()).join().unwrap());
    let allowed = |mode, caller, own| {
        let mut bed = Bed::new();
        bed.begin(A, mode).unwrap();
        let verdict = bed.captures.check_call(caller, own);
        assert_eq!(verdict.is_err(), bed.is_invalid(A));
        verdict.is_ok()
    };
    use Mode::{Global, Relaxed, ThreadLocal};
    for (mode, caller, own, expected) in [
        (Global, here, Global, false),
        (Global, elsewhere, Global, false),
        (Global, elsewhere, ThreadLocal, true),
        (Global, here, ThreadLocal, false),
        (Global, here, Relaxed, true),
        (ThreadLocal, here, Global, false),
        (ThreadLocal, elsewhere, Global, true),
        (ThreadLocal, here, ThreadLocal, false),
        (Relaxed, here, Global, true),
        (Relaxed, elsewhere, Global, true),
    ] {
        assert_eq!(allowed(mode, caller, own), expected, "{mode:?} {own:?} {}", caller == here);
    }
}

#[test]
fn only_a_relaxed_capture_ends_on_another_thread() {
    let elsewhere = thread::spawn(|| thread::current().id()).join().unwrap();
    let mut bed = Bed::new();
    bed.begin(A, Mode::ThreadLocal).unwrap();
    assert_eq!(bed.captures.end(A.id, elsewhere).err(), Some(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
    assert!(bed.end(A).is_ok());
    bed.begin(A, Mode::Relaxed).unwrap();
    assert!(bed.captures.end(A.id, elsewhere).is_ok());
}

#[test]
fn waiting_for_a_capturing_stream_or_its_context_invalidates_the_capture() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Relaxed).unwrap();
    assert_eq!(bed.captures.check_context(2), Ok(()));
    assert_eq!(bed.captures.check_context(1), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    assert!(bed.is_invalid(A) && bed.end(A).is_err());
    bed.begin(A, Mode::Relaxed).unwrap();
    assert_eq!(bed.captures.check_stream(B), Ok(()));
    assert_eq!(bed.captures.check_stream(A), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    assert!(bed.is_invalid(A));
}

#[test]
fn a_destroyed_stream_leaves_no_capture_that_cannot_end() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    bed.add(B, "never waited for").unwrap();
    bed.captures.forget_stream(B.id);
    assert!(!bed.is_invalid(A));
    assert_eq!(bed.end(A).err(), Some(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    bed.begin(A, Mode::Global).unwrap();
    bed.captures.forget_stream(A.id);
    assert!(bed.captures.captures.is_empty() && bed.captures.members.is_empty());
}

#[test]
fn a_stream_that_was_waited_for_can_be_destroyed_before_the_capture_ends() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    bed.add(B, "aside").unwrap();
    bed.captures.record(EVENT, B).unwrap();
    bed.captures.wait(A, EVENT).unwrap();
    bed.captures.forget_stream(B.id);
    bed.captures.forget_event(EVENT);
    bed.add(A, "after").unwrap();
    assert_eq!(bed.end(A).unwrap(), [("aside", vec![]), ("after", vec!["aside"])]);
}

#[test]
fn the_program_can_have_the_first_stream_wait_for_what_a_destroyed_stream_did() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    bed.add(B, "early").unwrap();
    let late = bed.add(B, "late").unwrap().unwrap();
    bed.captures.forget_stream(B.id);
    bed.add(A, "origin").unwrap();
    bed.captures.update(A.id, &[late.into()], false).unwrap();
    bed.add(A, "joined").unwrap();
    let expected = [("early", vec![]), ("late", vec!["early"]), ("origin", vec![]), ("joined", vec!["origin", "late"])];
    assert_eq!(bed.end(A).unwrap(), expected);
}

#[test]
fn a_wait_for_all_but_the_last_of_a_destroyed_stream_does_not_join_it() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    let early = bed.add(B, "early").unwrap().unwrap();
    bed.add(B, "late").unwrap();
    bed.captures.forget_stream(B.id);
    bed.captures.update(A.id, &[early.into()], true).unwrap();
    assert_eq!(bed.end(A).err(), Some(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
}

#[test]
fn a_third_stream_can_join_what_a_destroyed_stream_did() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    bed.captures.wait(C, EVENT).unwrap();
    bed.add(B, "aside").unwrap();
    bed.captures.record(EVENT, B).unwrap();
    bed.captures.forget_stream(B.id);
    bed.captures.wait(C, EVENT).unwrap();
    bed.add(C, "third").unwrap();
    bed.captures.record(EVENT, C).unwrap();
    bed.captures.wait(A, EVENT).unwrap();
    bed.add(A, "after").unwrap();
    assert_eq!(bed.end(A).unwrap(), [("aside", vec![]), ("third", vec!["aside"]), ("after", vec!["third"])]);
}

#[test]
fn dependencies_can_be_set_and_added_to() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    let first = bed.add(A, "first").unwrap().unwrap();
    bed.add(A, "second").unwrap();
    bed.captures.update(A.id, &[first.into()], false).unwrap();
    bed.add(A, "both").unwrap();
    bed.captures.update(A.id, &[first.into()], true).unwrap();
    bed.add(A, "first only").unwrap();
    assert_eq!(bed.captures.update(A.id, &[7.into()], true), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(bed.captures.update(B.id, &[], true), Err(CUDA_ERROR_ILLEGAL_STATE));
    let graph = bed.end(A).unwrap();
    assert_eq!(graph[2], ("both", vec!["second", "first"]));
    assert_eq!(graph[3], ("first only", vec!["first"]));
}

#[test]
fn a_programmatic_launch_follows_the_kernel_before_it_by_such_an_edge() {
    let mut bed = Bed::new();
    let edges = LaunchEdges { programmatic: true, events: Vec::new() };
    bed.begin(A, Mode::Global).unwrap();
    bed.launch(A, "alone", &edges).unwrap();
    bed.launch(A, "second", &edges).unwrap();
    bed.add(A, "copy").unwrap();
    bed.launch(A, "behind a copy", &edges).unwrap();
    let graph = bed.captures.end(A.id, thread::current().id()).unwrap();
    let edges: Vec<Edge> = lock(&graph).edges().map(|(from, _)| from.edge).collect();
    assert_eq!(edges, [Edge::PROGRAMMATIC, Edge::default(), Edge::default()]);
}

#[test]
fn an_event_that_a_launch_records_stands_for_the_launch() {
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    let edges = LaunchEdges { programmatic: false, events: vec![(EVENT, Edge::AT_BLOCK_START)] };
    let first = bed.launch(A, "first", &edges).unwrap().unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    let side = bed.add(B, "side").unwrap().unwrap();
    bed.captures.record(OTHER, B).unwrap();
    let main = bed.add(A, "main").unwrap().unwrap();
    bed.captures.wait(A, OTHER).unwrap();
    bed.captures.wait(A, EVENT).unwrap();
    bed.add(A, "copy").unwrap().unwrap();
    let graph = bed.captures.end(A.id, thread::current().id()).unwrap();
    let graph = lock(&graph);
    assert_eq!(graph.node(side).unwrap().dependencies(), [Dependency { on: first, edge: Edge::AT_BLOCK_START }]);
    assert_eq!(graph.node(main).unwrap().dependencies(), [first.into()]);
    let last = graph.nodes().last().unwrap().1;
    assert_eq!(last.dependencies(), [main.into(), side.into(), first.into()], "only kernels have programmatic edges");
}

#[test]
fn what_does_not_wait_for_the_whole_of_a_node_joins_nothing() {
    let launched = |bed: &mut Bed, event| {
        let edges = LaunchEdges { programmatic: false, events: vec![(event, Edge::PROGRAMMATIC)] };
        bed.launch(A, "first", &edges).unwrap();
    };
    let mut bed = Bed::new();
    bed.begin(A, Mode::Global).unwrap();
    launched(&mut bed, EVENT);
    bed.captures.wait(B, EVENT).unwrap();
    assert_eq!(bed.end(A).err(), Some(CUDA_ERROR_STREAM_CAPTURE_UNJOINED), "nothing was captured behind the event");

    bed.begin(A, Mode::Global).unwrap();
    bed.captures.record(EVENT, A).unwrap();
    bed.captures.wait(B, EVENT).unwrap();
    let edges = LaunchEdges { programmatic: false, events: vec![(OTHER, Edge::LAUNCH_ORDER)] };
    bed.launch(B, "side", &edges).unwrap();
    bed.captures.wait(A, OTHER).unwrap();
    bed.add(A, "last").unwrap();
    assert_eq!(bed.end(A).err(), Some(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
}
