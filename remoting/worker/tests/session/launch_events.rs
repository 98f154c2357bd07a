//! Events that launches record. In the fake driver a completion event is complete before its kernel is, and a
//! programmatic event is complete with it.

use super::*;
use protocol::{EventDestroy, LaunchAttribute, LaunchShape, Recording};

const EARLY: u32 = LaunchAttribute::COMPLETION_EVENT;
const LATE: u32 = LaunchAttribute::PROGRAMMATIC_EVENT;
const UNTIMED: u32 = 2;

impl Test {
    fn event(&mut self, event: u64, flags: u32) {
        self.client.send(0, &EventCreate { event, context: CONTEXT, flags }, &[]);
    }

    /// Launches a kernel that records events by attributes.
    fn launch_recording(&mut self, stream_id: u64, mark: u64, records: &[(u32, u64, u64)]) {
        let record = |(id, event, generation): &(u32, u64, u64)| {
            let record = Recording { event: *event, generation: *generation, at_block_start: true };
            LaunchAttribute::of_recording(*id, record)
        };
        let attributes = records.iter().map(record).collect();
        let shape = LaunchShape { grid: [1; 3], block: [1; 3], shared: 0, attributes };
        let launch = Launch { module: MODULE, kernel: 0, shape };
        self.client.send(stream_id, &launch, &mark.to_le_bytes());
    }

    fn query(&mut self, event: u64, generation: u64) -> u32 {
        self.client.call(0, &EventQuery { event, generation }, &[]).0
    }

    fn wait_for(&mut self, event: u64, generation: u64, code: u32) {
        let done = EventDone { event, generation, code };
        let is_it =
            |r: &Received| r.code == EventDone::CODE && EventDone::decode(&r.payload) == Ok((done.clone(), &[]));
        self.client.wait("event", is_it);
    }
}

#[test]
fn a_launch_records_and_its_event_says_nothing_of_the_stream() {
    let mut t = start();
    t.event(3, UNTIMED);
    t.event(4, UNTIMED);
    t.launch_recording(A, 1, &[(EARLY, 3, 1), (LATE, 4, 1)]);
    let stream = t.client.send(A, &StreamSynchronize { launches: UNCOUNTED }, &[]);
    assert_eq!(t.client.call(0, &EventSynchronize { event: 3, generation: 1 }, &[]).0, 0);
    assert_eq!((t.query(3, 1), t.query(4, 1)), (0, 600));
    t.turn();
    assert!(!t.client.has_reply(stream), "the kernel still runs");
    // From here on each is reported by itself.
    t.launch_recording(A, 2, &[(EARLY, 3, 2), (LATE, 4, 2)]);
    t.wait_for(3, 2, 0);
    t.turn();
    assert!(!t.client.has_reply(stream));
    fake::world().go_on();
    t.wait_for(4, 1, 0);
    t.wait_for(4, 2, 0);
    assert_eq!(t.client.reply(stream).0, 0);
    assert_eq!(t.launched(), [1, 2]);
}

#[test]
fn who_waits_for_a_launch_that_is_held_waits_for_its_record() {
    let mut t = start();
    t.event(3, UNTIMED);
    t.client.send(B, &EventRecord { event: 3, generation: 1, flags: 0 }, &[]);
    t.client.stream(13, NON_BLOCKING, 0);
    t.client.send(13, &HostFunction { token: 70 }, &[]);
    t.launch_recording(13, 1, &[(EARLY, 3, 2)]);
    t.client.send(B, &StreamWaitEvent { event: 3, generation: 2, flags: 0 }, &[]);
    t.launch(B, 2);
    let record = t.client.send(0, &EventSynchronize { event: 3, generation: 2 }, &[]);
    assert_eq!(t.query(3, 2), 600);
    // It is destroyed only when no command refers to it any more.
    t.client.send(0, &EventDestroy { event: 3 }, &[]);
    t.turn();
    assert_eq!((t.launched(), t.client.has_reply(record)), (vec![], false));
    t.client.wait("callback", |r| r.code == Callback::CODE);
    t.client.send(0, &CallbackDone { token: 70 }, &[]);
    assert_eq!(t.client.reply(record).0, 0);
    t.wait_for(3, 2, 0);
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.launched(), [1, 2]);
    assert_eq!(t.query(3, 2), 400, "it is gone");
}

#[test]
fn a_launch_that_fails_has_recorded_its_failure() {
    let mut t = start();
    t.event(3, UNTIMED);
    t.event(4, 0);
    assert_eq!(t.query(3, 0), 0);
    for (records, code) in [
        (&[(EARLY, 3, 1), (LATE, 99, 1)][..], 400), // there is no event 99
        (&[(EARLY, 3, 2), (LATE, 4, 1)], 1),        // the event has timing
    ] {
        t.launch_recording(B, 1, records);
        t.wait_for(3, records[0].2, code);
        assert_eq!(t.client.call(0, &EventSynchronize { event: 3, generation: records[0].2 }, &[]).0, code);
        assert_eq!(t.synchronize(B), 0, "the completion told it, once");
    }
    assert_eq!(t.launched(), [0u64; 0]);
    // An event that is named twice, on a stream that is held, is counted twice.
    t.client.send(B, &HostFunction { token: 70 }, &[]);
    t.launch_recording(B, 2, &[(EARLY, 3, 3), (EARLY, 3, 3)]);
    t.client.send(0, &EventDestroy { event: 3 }, &[]);
    t.client.wait("callback", |r| r.code == Callback::CODE);
    t.client.send(0, &CallbackDone { token: 70 }, &[]);
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.launched(), [2]);
}
