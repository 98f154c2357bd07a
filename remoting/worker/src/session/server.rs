//! The worker's event loop: one thread that serves the client's connection, the appliance and the GPU.

use crate::io::connection::{Connection, Taken};
use crate::io::frames::FrameReader;
use crate::io::packets::receive_packet;
use crate::memory::heirs::OFFER;
use crate::packets::Request;
use crate::session::commands::Session;
use crate::turns::asking::Turns;
use carrier::{Spin, TO_WAKE};
use driverapi::errors::*;
use protocol::{Acknowledge, Adopt, Message, Probe};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Limit on the frames that are taken before the GPU is queried and replies are sent again.
const FRAMES_PER_TURN: usize = 256;
/// The number of bytes that the client may leave unread. Beyond it, no more frames are taken.
const MOST_UNREAD: usize = 64 << 20;
/// The number of bytes that a client may leave unacknowledged. A client beyond it violates the protocol: copies wait
/// for page-locked memory before they reach this number, and every command acknowledges the answers before it.
const MOST_UNACKNOWLEDGED: usize = crate::driver::staging::LIMIT + (64 << 20);
const PACKET: usize = 64 << 10;
const STATS_EVERY: Duration = Duration::from_secs(1);
const WINDOW_EVERY: Duration = Duration::from_secs(1);
/// The time limit for sending the queue when a session ends.
const GOODBYE: Duration = Duration::from_secs(1);
const FOR_EVER: Duration = Duration::from_secs(3600);

/// The sleep between two queries of the GPU. At first it is zero, and later a fraction of the time waited so far.
#[derive(Debug)]
struct Backoff {
    since: Instant,
}

impl Backoff {
    const AWAKE: Duration = Duration::from_micros(50);
    const SHORTEST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_micros(500);

    fn new() -> Self {
        Backoff { since: Instant::now() }
    }

    fn next(&self) -> Duration {
        match self.since.elapsed() {
            waited if waited < Self::AWAKE => Duration::ZERO,
            waited => (waited / 16).clamp(Self::SHORTEST, Self::LONGEST),
        }
    }
}

/// Detects a client that is stopped while bytes wait for it.
struct Window {
    stopped: bool,
    look_at: Instant,
}

impl Window {
    /// Updates the state of the client's window. Returns the time until the next check, or `None` if none is needed.
    fn follow(&mut self, connection: BorrowedFd<'_>, waiting: bool, now: Instant) -> Option<Duration> {
        if !(waiting || self.stopped) {
            return None;
        }
        if now >= self.look_at {
            self.stopped = carrier::follow_window(connection);
            self.look_at = now + WINDOW_EVERY;
        }
        Some(self.look_at - now)
    }
}

/// Waits until the appliance passes the client's connection. Returns `None` if the appliance is gone.
///
/// # Errors
/// Fails if a socket fails.
pub fn accept_connection(control: BorrowedFd<'_>, data: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    loop {
        let mut fds = [PollFd::new(&control, PollFlags::IN), PollFd::new(&data, PollFlags::IN)];
        poll(&mut fds, None)?;
        let [control_ready, data_ready] = [0, 1].map(|i| !fds[i].revents().is_empty());
        if control_ready {
            let mut packet = vec![0; PACKET];
            let (count, _) = recv(control, &mut packet[..], RecvFlags::DONTWAIT)?;
            // Before there is a session, the only possible order is to end.
            if count == 0 || packet[..count].windows(5).any(|w| w == b"\"end\"") {
                return Ok(None);
            }
        }
        if data_ready {
            return receive_descriptor(data);
        }
    }
}

fn receive_descriptor(data: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let (count, descriptor) = receive_packet(data, &mut [0; 4096], RecvFlags::empty())?;
    if count == 0 {
        return Ok(None);
    }
    descriptor.map(Some).ok_or_else(|| io::Error::other("the gateway passed a packet without a connection"))
}

/// Reports to the appliance that the worker is ready for a connection.
///
/// # Errors
/// Fails if the appliance is gone.
pub fn tell_ready(control: BorrowedFd<'_>) -> io::Result<()> {
    send_request(control, &Request::Ready, None)
}

fn send_request(control: BorrowedFd<'_>, request: &Request, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let packet = serde_json::to_vec(request)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.into_iter().collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(control, &[IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Runs a session until it is over. It is over if it lost its connection and got no other one in time, if the appliance
/// is gone, or if the session ended itself.
pub fn serve(session: &mut Session, connection: &mut Connection, control: BorrowedFd<'_>) {
    // After any error the session is over, and only its memory has to be returned.
    let _ = run(session, connection, control);
    let offers = session.offers_memory();
    let offered = Instant::now();
    // The statistics are sent before steps that may take long, because this process may be killed meanwhile.
    session.requests.stats(session.stats, session.out.bytes_out);
    session.requests.push(Request::Ending { offers });
    let _ = send_requests(session, control);
    if let (false, Some(socket)) = (session.out.is_empty(), connection.socket()) {
        let _ = say_goodbye(session, socket);
    }
    connection.lose();
    session.part_with_everything();
    let _ = hear(session, control, GOODBYE, Session::is_parting);
    if offers {
        let _ = hear(session, control, OFFER.saturating_sub(offered.elapsed()), Session::is_offering);
    }
    // Nothing may write to memory that was handed on until the appliance has answered. If the appliance is gone, the
    // watchdog ends this process.
    let _ = hear(session, control, FOR_EVER, Session::is_handing_on);
    session.let_all_go();
    session.scrub_everything();
    session.requests.stats(session.stats, session.out.bytes_out);
    let _ = send_requests(session, control);
}

fn run(session: &mut Session, connection: &mut Connection, control: BorrowedFd<'_>) -> io::Result<()> {
    let mut reader = FrameReader::default();
    let mut backoff = Backoff::new();
    let mut spin = Spin::new(TO_WAKE);
    let mut stats_at = Instant::now() + STATS_EVERY;
    let mut window = Window { stopped: false, look_at: Instant::now() + WINDOW_EVERY };
    let mut told = (true, false);
    loop {
        let kept = session.out.kept();
        let more = take_frames(session, &mut reader);
        let acknowledged = session.out.kept() < kept;
        let mut moved = session.turn();
        if let Some(ahead) = session.hold.take_leaving() {
            session.depart(ahead, &reader.rest(), connection.epoch());
        }
        connection.follows(session.arrival.epoch);
        let sent = connection.socket().map(|socket| flush(session, socket));
        if matches!(sent, Some(Err(_))) {
            connection.lose();
        }
        if session.out.kept() - session.out.unsent() > MOST_UNACKNOWLEDGED {
            session.end(CUDA_ERROR_UNKNOWN, "the client acknowledges nothing");
        }
        if acknowledged || matches!(sent, Some(Ok(true))) {
            moved |= session.retry_blocked();
        }
        if session.client_ended || session.client_memory.is_closed() {
            connection.note_end_of_client();
        }
        let (connected, closed) = (connection.socket().is_some(), connection.is_hung_up());
        if (connected, closed) != told {
            told = (connected, closed);
            session.requests.push(Request::Connection { connected, closed });
        }
        if !session.settling.is_empty() && !more {
            // The top of the loop handles new bytes and the end of the connection.
            if !settle(session, &mut reader, connection) {
                continue;
            }
        }
        moved |= session.take_turns(!more && !moved)?;
        send_requests(session, control)?;
        if session.has_ended() || connection.is_over() {
            return Ok(());
        }
        if more || moved {
            backoff = Backoff::new();
            spin.again();
            continue;
        }
        let now = Instant::now();
        if now >= stats_at {
            session.requests.stats(session.stats, session.out.bytes_out);
            // This also serves a program that never synchronises.
            session.push_text();
            stats_at = now + STATS_EVERY;
        }
        let freed = session.look_after_freed();
        let gpu = session.needs_looking_after().then(|| backoff.next());
        let stats = session.requests.stats_are_due(session.stats).then(|| stats_at - now);
        let waiting = !session.out.is_empty();
        let window = connection.socket().and_then(|socket| window.follow(socket, waiting, now));
        // The client answers either soon or not at all, so the loop does not sleep.
        let awake = (connection.socket().is_some() && spin.goes_on()).then_some(Duration::ZERO);
        let timeout = gpu
            .into_iter()
            .chain(awake)
            .chain(freed)
            .chain(stats)
            .chain(window)
            .chain(connection.patience())
            .chain(session.hold.patience())
            .chain(session.turns.as_ref().and_then(Turns::patience))
            .min();
        let ready = wait(session, connection, control, timeout)?;
        if ready.passed {
            match connection.take_passed(&mut session.out)? {
                Taken::Nothing => {}
                // The failure of this connection may also have broken the stripes, without a sign.
                Taken::Resumed => session.stripes.close(),
                Taken::Memory(memory) => session.client_memory.follow(memory),
                Taken::Stripe { number, socket } => session.open_stripe(number, socket),
            }
        } else if let (true, Some(socket)) = (ready.connection, connection.socket()) {
            backoff = Backoff::new();
            spin.came();
            if receive(session, &mut reader, socket).is_err() {
                connection.lose();
            }
        } else if timeout == Some(Duration::ZERO) {
            // The work that the session waits for may need this processor.
            std::thread::yield_now();
        }
    }
}

/// Gives complete frames to the session. Returns whether more are available.
fn take_frames(session: &mut Session, reader: &mut FrameReader) -> bool {
    for _ in 0..FRAMES_PER_TURN {
        if session.has_ended() || session.hold.is_away() {
            return false;
        }
        match reader.next(|header, first| session.place(header, first)) {
            Ok(Some((header, payload))) => match session.out.acknowledge(header.ack) {
                Ok(()) if header.code == Acknowledge::CODE => {}
                Ok(()) if header.code == Adopt::CODE => session.adopt(&header, &payload, reader.unread()),
                Ok(()) if header.code == Probe::CODE => session.out.push(Acknowledge::CODE, 0, &Acknowledge {}, &[]),
                Ok(()) => session.accept(&header, payload),
                Err(e) => session.end(CUDA_ERROR_UNKNOWN, &e.to_string()),
            },
            Ok(None) => return false,
            Err(e) => session.end(CUDA_ERROR_UNKNOWN, &e.to_string()),
        }
    }
    true
}

/// Whether more may be read from the client.
fn reads(session: &Session) -> bool {
    session.out.unsent() < MOST_UNREAD && !session.hold.is_full() && !session.is_crowded()
}

/// Answers the appliance's requests about the bytes that the client has sent. Returns true if no more bytes have
/// arrived, or if nothing may be read.
fn settle(session: &mut Session, reader: &mut FrameReader, connection: &mut Connection) -> bool {
    let received = session.out.received();
    let Some(socket) = connection.socket().filter(|_| reads(session)) else {
        session.tell_settled(u64::MAX);
        return true;
    };
    let until = received + rustix::io::ioctl_fionread(socket).unwrap_or(0);
    session.settling.iter_mut().for_each(|(_, settles)| *settles = settles.or(Some(until)));
    // If the client has ended, the end of the connection follows these bytes.
    session.tell_settled(received);
    match receive(session, reader, socket) {
        Ok(false) => {
            session.tell_settled(u64::MAX);
            true
        }
        Ok(true) => false,
        Err(_) => {
            connection.lose();
            false
        }
    }
}

/// Receives bytes from the client. Returns whether any arrived.
///
/// # Errors
/// Fails if the connection is gone.
fn receive(session: &mut Session, reader: &mut FrameReader, connection: BorrowedFd<'_>) -> io::Result<bool> {
    match recv(connection, reader.space(), RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((count, _)) => {
            reader.filled(count);
            session.out.note_received(count);
            Ok(true)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Sends bytes to the client. Returns whether any were sent.
fn flush(session: &mut Session, connection: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let before = session.out.bytes_out;
    session.out.flush(|slices| Ok(sendmsg(connection, slices, &mut SendAncillaryBuffer::default(), flags)?))?;
    Ok(session.out.bytes_out > before)
}

fn send_requests(session: &mut Session, control: BorrowedFd<'_>) -> io::Result<()> {
    while let Some((request, file)) = session.requests.first() {
        match send_request(control, request, file) {
            Ok(()) => session.requests.sent(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The sockets that are ready and that the loop itself has to handle. Orders are taken at once.
struct Ready {
    connection: bool,
    passed: bool,
}

fn wait(
    session: &mut Session,
    connection: &Connection,
    control: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> io::Result<Ready> {
    let mut interest = PollFlags::empty();
    interest.set(PollFlags::IN, reads(session));
    interest.set(PollFlags::OUT, !session.out.is_empty());
    let mut control_interest = PollFlags::IN;
    control_interest.set(PollFlags::OUT, session.requests.first().is_some());
    let (client, others) = (connection.socket(), connection.passed());
    let [orders, woken, passed, readable, given] = {
        let helpers = session.helpers.wake();
        // A missing socket is replaced by one that is polled for no events.
        let nothing = (control, PollFlags::empty());
        let (client, interest) = client.map_or(nothing, |socket| (socket, interest));
        let (others, passes) = others.map_or(nothing, |socket| (socket, PollFlags::IN));
        let (turns, turn) = session.turns.as_ref().map_or(nothing, |turns| (turns.socket(), PollFlags::IN));
        let (memory, gives) = session.client_memory.socket().map_or(nothing, |socket| (socket, PollFlags::IN));
        let mut fds = [
            PollFd::new(&control, control_interest),
            PollFd::new(&helpers, PollFlags::IN),
            PollFd::new(&others, passes),
            PollFd::new(&client, interest),
            PollFd::new(&turns, turn),
            PollFd::new(&memory, gives),
        ];
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        [0, 1, 2, 3, 5].map(|at| fds[at].revents())
    };
    if !woken.is_empty() {
        session.helpers.rest();
    }
    let something = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
    if given.intersects(something) {
        session.take_client_memory();
    }
    if orders.intersects(something) {
        take_orders(session, control)?;
    }
    Ok(Ready {
        connection: client.is_some() && readable.intersects(something),
        passed: others.is_some() && passed.intersects(something),
    })
}

/// Takes orders about memory that other processes have or want, while `waits` returns true, for at most `patience`.
fn hear(
    session: &mut Session,
    control: BorrowedFd<'_>,
    patience: Duration,
    waits: impl Fn(&Session) -> bool,
) -> io::Result<()> {
    let until = Instant::now() + patience;
    while waits(session) {
        send_requests(session, control)?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        poll(&mut [PollFd::new(&control, PollFlags::IN)], Some(&timeout))?;
        take_orders(session, control)?;
    }
    Ok(())
}

fn take_orders(session: &mut Session, control: BorrowedFd<'_>) -> io::Result<()> {
    let mut packet = vec![0; PACKET];
    loop {
        match receive_packet(control, &mut packet, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((count, file)) => session.order(&packet[..count], file),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sends the queue to a client that still reads, at the end of a session.
fn say_goodbye(session: &mut Session, connection: BorrowedFd<'_>) -> io::Result<()> {
    let until = Instant::now() + GOODBYE;
    while !session.out.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        poll(&mut [PollFd::new(&connection.as_fd(), PollFlags::OUT)], Some(&timeout))?;
        flush(session, connection)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_get_rarer_within_bounds() {
        let mut backoff = Backoff::new();
        assert_eq!(backoff.next(), Duration::ZERO);
        backoff.since -= Backoff::AWAKE;
        assert_eq!(backoff.next(), Backoff::SHORTEST);
        backoff.since -= Duration::from_secs(1);
        assert_eq!(backoff.next(), Backoff::LONGEST);
    }
}
