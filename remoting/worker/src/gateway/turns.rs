//! Turns at the GPUs, if the appliance divides their time. One thread handles all turns, because a turn is short and
//! the other threads are busy with bytes. Each worker has a socket, which closes when the worker dies. Each GPU has an
//! arbiter.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::registry::Id;
use crate::packets::{LeasePart, Said, Told, UsedTime};
use crate::turns::arbiter::{Arbiter, Member, Nanos, Part, Word};

/// Limit on the packets of one worker that are read before the packets of other workers.
const MOST_READ: usize = 16;
const PACKET: usize = 256;
/// The interval between reports of used time.
const USED_EVERY: Duration = Duration::from_secs(1);

enum Order {
    Share { lease: Id, places: Vec<LeasePart> },
    Join { session: Id, lease: Id, socket: OwnedFd },
    Forget(Id),
}

/// A handle to the thread. The thread ends when this value is dropped.
pub struct Turns {
    orders: Sender<Order>,
    wake: OwnedFd,
}

impl Turns {
    /// Starts the thread. It reports the used time by calling `used`, which must not wait.
    ///
    /// # Errors
    /// Fails if no threads or descriptors are left.
    pub fn start(used: impl Fn(Vec<UsedTime>) + Send + 'static) -> io::Result<Self> {
        let start = Instant::now();
        Self::start_by(move || start.elapsed().as_nanos() as Nanos, used)
    }

    /// Like [`Turns::start`], with another clock to measure the turns.
    ///
    /// # Errors
    /// The same errors as [`Turns::start`].
    pub fn start_by(
        clock: impl Fn() -> Nanos + Send + 'static,
        used: impl Fn(Vec<UsedTime>) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, receiver) = mpsc::channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let woken = wake.try_clone()?;
        let mut desk = Desk::new(first_number());
        let body = move || {
            while desk.serve(&receiver, woken.as_fd(), &clock, &used).is_ok() {}
        };
        std::thread::Builder::new().name("turns".into()).spawn(body)?;
        Ok(Turns { orders, wake })
    }

    /// Sets the parts of the GPUs that a lease has.
    pub fn share(&self, lease: Id, places: Vec<LeasePart>) {
        self.order(Order::Share { lease, places });
    }

    /// Adds a session's worker, which takes turns through this socket.
    pub fn join(&self, session: Id, lease: Id, socket: OwnedFd) {
        self.order(Order::Join { session, lease, socket });
    }

    /// Removes a session or a lease that has ended.
    pub fn forget(&self, id: Id) {
        self.order(Order::Forget(id));
    }

    fn order(&self, order: Order) {
        // The thread exists as long as `self`.
        let _ = self.orders.send(order);
        self.ring();
    }

    fn ring(&self) {
        // The counter also wakes the thread if it is full.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        // Without a sender, the thread's channel is closed and the thread ends.
        self.orders = mpsc::channel().0;
        self.ring();
    }
}

/// Returns a number that is higher than every turn number of an earlier gateway.
fn first_number() -> u64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u64 * 1_000_000_000
}

struct Worker {
    session: Id,
    socket: OwnedFd,
    /// The GPUs, indexed by their numbers in the lease.
    gpus: Vec<u32>,
}

/// The state of the thread.
struct Desk {
    arbiters: BTreeMap<u32, Arbiter<Id>>,
    leases: HashMap<Id, Vec<LeasePart>>,
    workers: BTreeMap<Member, Worker>,
    last_member: Member,
    first_number: u64,
    tell_used_at: Instant,
}

impl Desk {
    fn new(first_number: u64) -> Self {
        Desk {
            arbiters: BTreeMap::new(),
            leases: HashMap::new(),
            workers: BTreeMap::new(),
            last_member: 0,
            first_number,
            tell_used_at: Instant::now() + USED_EVERY,
        }
    }

    /// Waits for orders, packets or a deadline, and handles them.
    ///
    /// # Errors
    /// Fails if all senders of orders were dropped.
    fn serve(
        &mut self,
        orders: &Receiver<Order>,
        wake: BorrowedFd<'_>,
        clock: &impl Fn() -> Nanos,
        used: &impl Fn(Vec<UsedTime>),
    ) -> io::Result<()> {
        let (ordered, readable) = self.wait(wake)?;
        if ordered {
            let _ = rustix::io::read(wake, &mut [0; 8]);
            loop {
                match orders.try_recv() {
                    Ok(order) => {
                        // The used time is reported before the lease is removed.
                        if matches!(order, Order::Forget(_)) {
                            self.tell_used(clock(), used);
                        }
                        self.obey(order, clock());
                    }
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
                }
            }
        }
        for member in readable {
            if !self.hear(member, clock) {
                self.dismiss(member, clock());
            }
        }
        let now = clock();
        self.arbiters.values_mut().for_each(|arbiter| arbiter.look(now));
        self.tell(clock);
        if Instant::now() >= self.tell_used_at {
            self.tell_used(now, used);
        }
        Ok(())
    }

    /// Waits. Returns whether there are orders, and the workers that sent packets.
    fn wait(&self, wake: BorrowedFd<'_>) -> io::Result<(bool, Vec<Member>)> {
        let due = self.arbiters.values().filter_map(Arbiter::patience).min().map(Duration::from_nanos);
        let telling = self.tell_used_at.saturating_duration_since(Instant::now());
        let timeout = due.into_iter().chain((!self.workers.is_empty()).then_some(telling)).min();
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        let sockets = self.workers.values().map(|worker| PollFd::new(&worker.socket, PollFlags::IN));
        let mut fds: Vec<_> = std::iter::once(PollFd::new(&wake, PollFlags::IN)).chain(sockets).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let members = self.workers.keys().zip(&ready[1..]).filter(|(_, ready)| **ready).map(|(member, _)| *member);
        Ok((ready[0], members.collect()))
    }

    fn obey(&mut self, order: Order, now: Nanos) {
        match order {
            Order::Share { lease, places } => {
                for place in &places {
                    let arbiter =
                        self.arbiters.entry(place.gpu).or_insert_with(|| Arbiter::new(self.first_number, now));
                    arbiter.set_share(lease, Part { weight: place.weight, limit: place.limit }, now);
                }
                self.leases.insert(lease, places);
            }
            Order::Join { session, lease, socket } => {
                let Some(places) = self.leases.get(&lease) else { return };
                self.last_member += 1;
                let (member, gpus) = (self.last_member, places.iter().map(|place| place.gpu).collect::<Vec<_>>());
                for gpu in &gpus {
                    if let Some(arbiter) = self.arbiters.get_mut(gpu) {
                        arbiter.join(member, lease, now);
                    }
                }
                self.workers.insert(member, Worker { session, socket, gpus });
                self.send(member, Told::Begin, now);
            }
            Order::Forget(id) => {
                let gone = self.workers.iter().filter(|(_, worker)| worker.session == id).map(|(member, _)| *member);
                gone.collect::<Vec<_>>().into_iter().for_each(|member| self.dismiss(member, now));
                for place in self.leases.remove(&id).unwrap_or_default() {
                    if let Some(arbiter) = self.arbiters.get_mut(&place.gpu) {
                        arbiter.forget_share(&id, now);
                    }
                }
            }
        }
    }

    /// Reads a worker's packets. They are not trusted, because the worker may be under its tenant's control. Returns
    /// false if the worker has ended or sent an invalid packet.
    fn hear(&mut self, member: Member, clock: &impl Fn() -> Nanos) -> bool {
        let mut packet = [0; PACKET];
        for _ in 0..MOST_READ {
            let Some(worker) = self.workers.get(&member) else { return true };
            let said = match recv(&worker.socket, &mut packet[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((count, _)) => serde_json::from_slice::<Said>(&packet[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            };
            let Ok(said) = said else { return false };
            let (Said::Want { device } | Said::Done { device, .. }) = said;
            let Some(arbiter) = worker.gpus.get(device as usize).and_then(|gpu| self.arbiters.get_mut(gpu)) else {
                return false;
            };
            match said {
                Said::Want { .. } => arbiter.want(member, clock()),
                Said::Done { turn, more, .. } => arbiter.done(member, turn, more, clock()),
            }
        }
        true
    }

    /// Sends the arbiters' decisions to the workers.
    fn tell(&mut self, clock: &impl Fn() -> Nanos) {
        loop {
            let words: Vec<_> = self.arbiters.iter_mut().map(|(gpu, arbiter)| (*gpu, arbiter.take_words())).collect();
            if words.iter().all(|(_, words)| words.is_empty()) {
                return;
            }
            for (gpu, (member, word)) in words.into_iter().flat_map(|(gpu, all)| all.into_iter().map(move |w| (gpu, w)))
            {
                let Some(worker) = self.workers.get(&member) else { continue };
                let Some(device) = worker.gpus.iter().position(|each| *each == gpu) else { continue };
                let device = device as u32;
                let told = match word {
                    Word::Turn { turn, sharers } => Told::Turn { device, turn, sharers },
                    Word::Sharers(present) => Told::Sharers { device, present },
                    Word::Yield(turn) => Told::Yield { device, turn },
                    Word::Over(turn) => Told::Over { device, turn },
                };
                self.send(member, told, clock());
            }
        }
    }

    /// Sends a packet to a worker. Removes a worker that has ended or does not read.
    fn send(&mut self, member: Member, told: Told, now: Nanos) {
        let Some(worker) = self.workers.get(&member) else { return };
        let sent = serde_json::to_vec(&told)
            .ok()
            .map(|packet| send(&worker.socket, &packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT));
        if !matches!(sent, Some(Ok(_))) {
            self.dismiss(member, now);
        }
    }

    fn dismiss(&mut self, member: Member, now: Nanos) {
        if let Some(worker) = self.workers.remove(&member) {
            self.tell_used_at = Instant::now();
            for gpu in &worker.gpus {
                if let Some(arbiter) = self.arbiters.get_mut(gpu) {
                    arbiter.leave(member, now);
                }
            }
        }
    }

    fn tell_used(&mut self, now: Nanos, used: &impl Fn(Vec<UsedTime>)) {
        self.tell_used_at = Instant::now() + USED_EVERY;
        let of_gpu = |(gpu, arbiter): (&u32, &mut Arbiter<Id>)| {
            let gpu = *gpu;
            let used = arbiter.take_used(now);
            used.into_iter().map(move |(lease, nanoseconds)| UsedTime {
                lease: carrier::to_hex(&lease),
                gpu,
                nanoseconds,
            })
        };
        let all: Vec<_> = self.arbiters.iter_mut().flat_map(of_gpu).collect();
        if !all.is_empty() {
            used(all);
        }
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
