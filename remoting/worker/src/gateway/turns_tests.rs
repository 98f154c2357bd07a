//! Tests of the thread that gives turns. Real sockets are used, and the tests play the workers.

use super::{Id, Turns};
use crate::packets::{LeasePart, Said, Told, UsedTime};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::fd::OwnedFd;
use std::sync::mpsc;

const LEASES: [Id; 2] = [[1; 16], [2; 16]];

struct Worker(OwnedFd);

impl Worker {
    fn join(turns: &Turns, session: u8, lease: Id) -> Self {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
        turns.join([session; 16], lease, theirs);
        let worker = Worker(ours);
        assert_eq!(worker.hear(), Some(Told::Begin));
        worker
    }

    fn say(&self, said: Said) {
        send(&self.0, &serde_json::to_vec(&said).expect("JSON"), SendFlags::empty()).expect("it listens");
    }

    /// Returns the next packet, or `None` if the other end is closed.
    fn hear(&self) -> Option<Told> {
        let mut packet = [0; 256];
        let (count, _) = recv(&self.0, &mut packet[..], RecvFlags::empty()).expect("a packet or the end");
        (count > 0).then(|| serde_json::from_slice(&packet[..count]).expect("a word"))
    }

    fn turn(&self) -> u64 {
        loop {
            match self.hear() {
                Some(Told::Turn { device: 0, turn, .. }) => return turn,
                Some(_) => {}
                None => panic!("it was dismissed"),
            }
        }
    }
}

fn start() -> (Turns, mpsc::Receiver<Vec<UsedTime>>) {
    let (tell, used) = mpsc::channel();
    let turns = Turns::start(move |times| drop(tell.send(times))).expect("a thread");
    for lease in LEASES {
        turns.share(lease, vec![LeasePart { gpu: 3, weight: 500, limit: 1000 }]);
    }
    (turns, used)
}

#[test]
fn a_turn_passes_on_when_it_is_done_or_its_worker_is_gone_or_it_lasts_too_long() {
    let (turns, used) = start();
    let [first, second] = [0, 1].map(|i| Worker::join(&turns, 10 + i, LEASES[usize::from(i)]));
    first.say(Said::Want { device: 0 });
    let turn = first.turn();
    second.say(Said::Want { device: 0 });
    let yields = std::iter::from_fn(|| first.hear()).find(|told| *told == Told::Yield { device: 0, turn });
    assert!(yields.is_some(), "the second one waits");
    first.say(Said::Done { device: 0, turn, more: true });
    let turn = second.turn();
    drop(second);
    assert!(first.turn() > turn, "its worker is gone");
    let third = Worker::join(&turns, 12, LEASES[1]);
    third.say(Said::Want { device: 0 });
    let turn = third.turn();
    first.say(Said::Want { device: 0 });
    assert_eq!(third.hear(), Some(Told::Yield { device: 0, turn }), "the first one waits");
    assert_eq!(third.hear(), Some(Told::Over { device: 0, turn }));
    drop(turns);
    let all: Vec<UsedTime> = used.into_iter().flatten().collect();
    assert!(all.iter().any(|each| each.lease == "01".repeat(16) && each.gpu == 3), "{all:?}");
}

#[test]
fn who_says_nonsense_has_no_more_turns() {
    let (turns, _used) = start();
    for nonsense in [&br#"{"op":"want","device":1}"#[..], b"{}", b"\xff", br#"{"op":"done","device":0}"#] {
        let worker = Worker::join(&turns, 10, LEASES[0]);
        send(&worker.0, nonsense, SendFlags::empty()).expect("it listens");
        assert_eq!(worker.hear(), None, "{}", String::from_utf8_lossy(nonsense));
    }
    let honest = Worker::join(&turns, 11, LEASES[1]);
    honest.say(Said::Want { device: 0 });
    honest.turn();
}

#[test]
fn a_lease_that_is_gone_takes_its_workers_along() {
    let (turns, _used) = start();
    let worker = Worker::join(&turns, 10, LEASES[0]);
    turns.forget(LEASES[1]);
    worker.say(Said::Want { device: 0 });
    worker.turn();
    turns.forget([10; 16]);
    assert_eq!(worker.hear(), None);
}
