//! Mirrors: the client gets what the device wrote before anything that lets it conclude the write, once, and never in
//! place of bytes that it has sent later.

use super::*;
use protocol::{MirrorAdd, MirrorChanges, MirrorEnd, MirrorPart, MirrorRun, MirrorsTold};

const CARRIER: u64 = 20;
const MIRROR: u64 = 90;
const AT: u64 = 4096;

/// Starts a session with a mirror of 4,096 zeros at `AT`, and the stream that carries its changes, which is the newest.
fn start_mirrored() -> Test {
    mirrored(start())
}

fn mirrored(mut t: Test) -> Test {
    t.write(B, AT, &[0; 4096]);
    mirrored_as_it_is(t)
}

fn mirrored_as_it_is(mut t: Test) -> Test {
    t.client.stream(CARRIER, NON_BLOCKING, 0);
    let add = MirrorAdd { mirror: MIRROR, context: CONTEXT, address: t.base + AT, size: 4096 };
    assert_eq!(t.client.call(CARRIER, &add, &[]).0, 0);
    t
}

impl Test {
    fn change(&mut self, at: u64, bytes: &[u8]) -> u64 {
        let runs = vec![MirrorRun { at, len: bytes.len() as u32 }];
        self.client.send(CARRIER, &MirrorChanges { parts: vec![MirrorPart { mirror: MIRROR, runs }] }, bytes)
    }

    /// Returns the changes reported so far, in order: the place and the bytes.
    fn told(&self) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        for r in self.client.inbox.iter().filter(|r| r.code == MirrorsTold::CODE) {
            let (told, mut bytes) = MirrorsTold::decode(&r.payload).expect("told");
            for run in told.parts.iter().flat_map(|part| &part.runs) {
                let (run_bytes, rest) = bytes.split_at(run.len as usize);
                all.push((run.at, run_bytes.to_vec()));
                bytes = rest;
            }
        }
        all
    }

    /// How often the mirror was read.
    fn readings(&self) -> usize {
        fake::world().copied_to_host.iter().filter(|address| **address == self.base + AT).count()
    }

    fn applied(&self) -> Option<u64> {
        let last = self.client.inbox.iter().rev().find(|r| r.code == MirrorsTold::CODE)?;
        Some(MirrorsTold::decode(&last.payload).expect("told").0.applied)
    }
}

#[test]
fn words_that_the_device_wrote_are_told_once_before_the_answer() {
    let mut t = start_mirrored();
    t.write(B, AT + 8, b"abcdefgh");
    t.write(B, AT + 4092, b"wxyz");
    let done = t.client.send(B, &StreamSynchronize { launches: UNCOUNTED }, &[]);
    assert_eq!(t.client.reply(done).0, 0);
    assert_eq!(t.told(), [(8, b"abcdefgh".to_vec()), (4092, b"wxyz".to_vec())]);
    let told = t.position(|r| r.code == MirrorsTold::CODE);
    assert!(told.is_some() && told < t.position(|r| r.code == Reply::CODE && r.seq == done));
    // The same bytes again, and bytes next to the mirror.
    t.write(B, AT + 8, b"abcd");
    t.write(B, AT + 4096, b"beside");
    assert_eq!(t.synchronize(B), 0);
    t.write(B, AT + 12, b"EFGH");
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.told()[2..], [(12, b"EFGH".to_vec())]);
}

#[test]
fn what_memory_has_when_its_mirror_begins_is_not_told() {
    let mut t = start();
    t.write(B, AT + 40, b"before");
    let mut t = mirrored_as_it_is(t);
    t.launch(B, 1);
    assert_eq!((t.synchronize(B), t.told()), (0, vec![]));
    t.write(B, AT + 40, b"Bef");
    assert_eq!((t.synchronize(B), t.told()), (0, vec![(40, b"Befo".to_vec())]));
}

#[test]
fn where_streams_were_given_nothing_nothing_is_read() {
    let mut t = start_mirrored();
    t.write(B, AT + 8, b"abcd");
    assert_eq!(t.synchronize(B), 0);
    let before = t.readings();
    assert_eq!((t.synchronize(B), t.synchronize(B)), (0, 0));
    assert_eq!(t.readings(), before);
}

#[test]
fn everything_that_says_that_work_is_complete_stands_behind_the_words() {
    let mut t = start_mirrored();
    t.client.send(0, &EventCreate { event: 3, context: CONTEXT, flags: 2 }, &[]);
    let query = t.client.send(0, &EventQuery { event: 3, generation: 1 }, &[]);
    t.client.reply(query);
    type Ask = fn(&mut Test) -> Box<dyn Fn(&Received) -> bool>;
    let asks: [Ask; 6] = [
        |t| {
            let seq = t.client.send(B, &StreamQuery {}, &[]);
            Box::new(move |r| r.code == Reply::CODE && r.seq == seq)
        },
        |t| {
            let wait = ContextSynchronize { context: CONTEXT, launches: UNCOUNTED };
            let seq = t.client.send(0, &wait, &[]);
            Box::new(move |r| r.code == Reply::CODE && r.seq == seq)
        },
        |t| {
            let token = 70 + t.client.seq;
            t.client.send(B, &HostFunction { token }, &[]);
            t.client.wait("callback", |r| r.code == Callback::CODE && r.payload == token.to_le_bytes());
            t.client.send(0, &CallbackDone { token }, &[]);
            Box::new(move |r| r.code == Callback::CODE && r.payload == token.to_le_bytes())
        },
        |t| {
            let token = 70 + t.client.seq;
            t.client.send(0, &ContextFence { context: CONTEXT, token }, &[]);
            Box::new(move |r| r.code == Fenced::CODE && r.payload == token.to_le_bytes())
        },
        |t| {
            let seq = t.read(B, 0, 4);
            Box::new(move |r| r.code == Reply::CODE && r.seq == seq)
        },
        |t| {
            t.client.send(B, &EventRecord { event: 3, generation: 2, flags: 0 }, &[]);
            Box::new(|r| {
                r.code == EventDone::CODE && EventDone::decode(&r.payload).is_ok_and(|(done, _)| done.generation == 2)
            })
        },
    ];
    for (turn, ask) in asks.into_iter().enumerate() {
        let before = t.told().len();
        t.write(B, AT + 8 * turn as u64, &[turn as u8 + 1; 4]);
        let wanted = ask(&mut t);
        t.client.wait("what says it", &wanted);
        let answered = t.position(&wanted).expect("it came");
        let told = t.client.inbox.iter().rposition(|r| r.code == MirrorsTold::CODE).expect("words");
        assert_eq!(t.told()[before..], [(8 * turn as u64, vec![turn as u8 + 1; 4])], "{turn}");
        assert!(told < answered, "{turn}");
    }
}

#[test]
fn what_the_client_changes_while_mirrors_are_read_is_not_told_as_the_devices() {
    let mut t = start_mirrored();
    t.write(B, AT + 8, b"kernkern");
    fake::world().stop_newest();
    let done = t.client.send(B, &StreamSynchronize { launches: UNCOUNTED }, &[]);
    t.turn();
    assert!(!t.client.has_reply(done), "the mirror has not been read");
    let change = t.change(12, b"host");
    t.turn();
    fake::world().go_on();
    assert_eq!(t.client.reply(done).0, 0);
    assert_eq!((t.told(), t.applied()), (vec![(8, b"kern".to_vec())], Some(change)));
    // The device has the client's word, which is not reported; then it writes the word again.
    t.launch(B, 1);
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.told().len(), 1);
    t.write(B, AT + 12, b"Kern");
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.told()[1..], [(12, b"Kern".to_vec())]);
    let read = t.read(B, AT + 8, 8);
    assert_eq!(t.client.host_bytes(read), (0, b"kernKern".to_vec()));
}

#[test]
fn the_clients_changes_are_on_the_device_and_it_hears_which_without_asking() {
    let mut t = start_mirrored();
    let change = t.change(100, b"from the host   ");
    let consumed = t.client.wait("room", |r| r.code == protocol::Consumed::CODE && r.payload == 16u64.to_le_bytes());
    assert_eq!(consumed.seq, 0);
    t.launch(B, 1);
    assert_eq!(t.synchronize(B), 0);
    assert_eq!((t.told(), t.applied()), (vec![], Some(change)));
    let read = t.read(B, AT + 100, 16);
    assert_eq!(t.client.host_bytes(read), (0, b"from the host   ".to_vec()));
}

#[test]
fn changes_that_are_in_no_mirror_are_refused_and_of_one_that_has_ended_ignored() {
    let mut t = start_mirrored();
    t.change(4094, b"beyond");
    t.client.wait("room", |r| r.code == protocol::Consumed::CODE && r.payload == 6u64.to_le_bytes());
    assert_eq!(t.synchronize(B), 1);
    t.client.send(0, &MirrorEnd { mirror: MIRROR }, &[]);
    t.change(0, b"late");
    t.write(B, AT + 8, b"more");
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.told(), []);
    let read = t.read(B, AT, 4);
    assert_eq!(t.client.host_bytes(read), (0, vec![0; 4]));
}

#[test]
fn one_reading_serves_all_that_is_complete_when_it_begins_and_is_the_only_one() {
    let streams = 30..36;
    let mut t = start();
    streams.clone().for_each(|id| t.client.stream(id, NON_BLOCKING, 0));
    let mut t = mirrored(t);
    let before = t.readings();
    fake::world().stop_newest();
    let wait = |t: &mut Test, id: u64, byte: u8| {
        t.write(id, AT + 8 * id, &[byte; 4]);
        t.client.send(id, &StreamSynchronize { launches: UNCOUNTED }, &[])
    };
    let first = wait(&mut t, B, 1);
    t.turn();
    assert_eq!(t.readings() - before, 1);
    // As several threads do that wait for several streams at a time.
    let mut later: Vec<u64> = streams.clone().map(|id| wait(&mut t, id, 2)).collect();
    later.extend(streams.clone().map(|id| wait(&mut t, id, 3)));
    t.turn();
    assert_eq!(t.readings() - before, 1, "one is read at a time");
    assert!(!t.client.has_reply(first) && later.iter().all(|seq| !t.client.has_reply(*seq)));
    fake::world().go_on();
    for seq in std::iter::once(first).chain(later) {
        assert_eq!(t.client.reply(seq).0, 0);
    }
    assert_eq!(t.readings() - before, 2, "the second one for all twelve");
    assert!(t.client.inbox.iter().filter(|r| r.code == MirrorsTold::CODE).count() <= 2);
    assert!(streams.into_iter().all(|id| t.told().contains(&(8 * id, vec![3; 4]))));
}

#[test]
fn without_mirrors_nothing_is_read_and_nothing_held_up() {
    let mut t = start_mirrored();
    t.client.send(0, &MirrorEnd { mirror: MIRROR }, &[]);
    let before = t.readings();
    fake::world().stop_newest();
    t.write(B, AT, b"more");
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.readings(), before);
}
