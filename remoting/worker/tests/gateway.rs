//! The gateway as the appliance, clients and unauthenticated peers see it, on real sockets.

use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use carrier::to_hex;
use protocol::{Preface, PrefaceKind};
use remotegpu_worker::gateway::{self, Options};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, socketpair,
};
use serde_json::{Value, json};

const ID: [u8; 16] = [0xa1; 16];
const TICKET: [u8; 32] = [0xb2; 32];

/// Limit on each wait: tests fail rather than hang.
const PATIENCE: Duration = Duration::from_secs(20);

struct Packets(OwnedFd);

impl Packets {
    fn pair() -> (Packets, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::sockopt::set_socket_timeout(&ours, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        (Packets(ours), theirs)
    }

    fn send(&self, packet: Value, descriptor: Option<BorrowedFd<'_>>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        let text = packet.to_string();
        let parts = [std::io::IoSlice::new(text.as_bytes())];
        rustix::net::sendmsg(&self.0, &parts, &mut ancillary, SendFlags::empty()).unwrap();
    }

    /// Returns the next packet and its descriptor; `None` at the end.
    fn receive(&self) -> Option<(Value, Option<OwnedFd>)> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(&self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let bytes = &bytes[..received.bytes];
        (!bytes.is_empty()).then(|| (serde_json::from_slice(bytes).unwrap(), descriptor))
    }
}

/// A running gateway, seen from the appliance.
struct House {
    control: Packets,
    port: u16,
    gateway: JoinHandle<()>,
}

impl House {
    fn open() -> House {
        let (control, theirs) = Packets::pair();
        let gateway = std::thread::spawn(move || {
            let options = Options {
                listen: "127.0.0.1:0".into(),
                control_listen: "127.0.0.1:0".into(),
                control_socket: "/nobody/listens/here".into(),
                data_socket: None,
                control_fd: -1,
                tls: None,
            };
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(gateway::run(options, theirs)).unwrap();
        });
        let (listening, _) = control.receive().unwrap();
        assert_eq!(listening["op"], "listening");
        House { control, port: listening["port"].as_u64().unwrap() as u16, gateway }
    }

    /// Registers the session and returns the worker's end of its data socket.
    fn expect_session(&self) -> Packets {
        self.expect_session_that(false)
    }

    fn expect_session_that(&self, resumes: bool) -> Packets {
        let (worker, gateway_end) = Packets::pair();
        let order = json!({"op": "session", "id": to_hex(&ID), "ticket": to_hex(&TICKET), "resumes": resumes});
        self.control.send(order, Some(gateway_end.as_fd()));
        worker
    }

    fn expect_lease(&self) {
        self.control.send(json!({"op": "lease", "id": to_hex(&ID), "ticket": to_hex(&TICKET)}), None);
    }

    fn event(&self) -> Value {
        self.control.receive().expect("the gateway left").0
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A connection from 127.0.0.`last`, which counts as another peer.
    fn connect_from(&self, last: u8) -> TcpStream {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        rustix::net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], self.port))).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn connect_with(&self, preface: &Preface) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&preface.encode()).unwrap();
        stream
    }
}

fn preface(kind: PrefaceKind) -> Preface {
    Preface { kind, id: ID, ticket: TICKET }
}

fn accepted(stream: &mut TcpStream) -> bool {
    let mut answer = [0];
    matches!(stream.read(&mut answer), Ok(1)) && answer == *b"K"
}

/// Orders do not come through the data port: tries until the gateway knows of the session or lease.
fn admitted(house: &House, preface: &Preface) -> TcpStream {
    loop {
        let mut stream = house.connect_with(preface);
        if accepted(&mut stream) {
            return stream;
        }
        assert_eq!(house.event()["op"], "refused");
    }
}

/// Whether the peer has ended the connection, with or without a reset.
fn at_end(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn a_session_s_own_socket_reaches_its_worker() {
    let house = House::open();
    let worker = house.expect_session();
    let mut client = admitted(&house, &preface(PrefaceKind::Session));
    assert_eq!(house.event(), json!({"op": "session_connected", "id": to_hex(&ID)}));

    let (packet, connection) = worker.receive().unwrap();
    assert_eq!(packet, json!({"op": "connection"}));
    let mut connection = TcpStream::from(connection.unwrap());
    assert_eq!(connection.peer_addr().unwrap(), client.local_addr().unwrap(), "the very socket");

    client.write_all(b"first frame").unwrap();
    let mut got = [0; 11];
    connection.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"first frame", "nothing lost, nothing left of the preface");
    connection.write_all(b"reply").unwrap();
    let mut got = [0; 5];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"reply");

    drop(connection);
    assert!(at_end(&mut client), "the worker's end is the client's end: the gateway keeps no copy");
    house.control.send(json!({"op": "forget", "id": to_hex(&ID)}), None);
    assert!(worker.receive().is_none(), "the gateway keeps no way to the worker of a session that is over");
}

/// Asks for a connection as an acceptor does, and returns it.
fn handed(acceptor: &Packets) -> UnixStream {
    acceptor.send(json!({}), None);
    let (_, descriptor) = acceptor.receive().expect("an answer");
    let stream = UnixStream::from(descriptor.expect("a connection"));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn an_acceptor_is_given_connections_and_a_ticket_counts_on_them() {
    let house = House::open();
    let (acceptor, gateway_end) = Packets::pair();
    house.control.send(json!({"op": "acceptor", "id": to_hex(&[7; 16])}), Some(gateway_end.as_fd()));
    let worker = house.expect_session();
    let mut stranger = handed(&acceptor);
    stranger.write_all(b"GET ").unwrap();
    assert_eq!(stranger.read(&mut [0; 16]).unwrap(), 0);
    let told = house.event();
    assert_eq!((&told["op"], &told["peer"]), (&json!("refused"), &json!(format!("session:{}", to_hex(&[7; 16])))));
    let mut client = handed(&acceptor);
    client.write_all(&preface(PrefaceKind::Session).encode()).unwrap();
    let mut answer = [0];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"K");
    let (_, connection) = worker.receive().unwrap();
    let mut connection = UnixStream::from(connection.expect("the connection"));
    connection.write_all(b"x").unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"x");
}

#[test]
fn an_acceptor_that_keeps_all_its_connections_waits_for_itself() {
    let house = House::open();
    let (acceptor, gateway_end) = Packets::pair();
    let (other, other_end) = Packets::pair();
    for (number, end) in [(7, &gateway_end), (8, &other_end)] {
        house.control.send(json!({"op": "acceptor", "id": to_hex(&[number; 16])}), Some(end.as_fd()));
    }
    let mut kept: Vec<_> = (0..32).map(|_| handed(&acceptor)).collect();
    acceptor.send(json!({}), None);
    let _unhindered = handed(&other);
    kept.pop();
    assert!(acceptor.receive().is_some_and(|(_, descriptor)| descriptor.is_some()));
}

#[test]
fn a_ticket_lets_one_connection_in() {
    let house = House::open();
    let _worker = house.expect_session();
    let _client = admitted(&house, &preface(PrefaceKind::Session));
    assert_eq!(house.event()["op"], "session_connected");
    let mut second = house.connect_with(&preface(PrefaceKind::Session));
    assert!(!accepted(&mut second));
    let event = house.event();
    assert_eq!(event["op"], "refused");
    assert!(event["reason"].as_str().unwrap().contains("used before"), "{event}");
}

#[test]
fn who_comes_back_is_passed_to_the_worker_or_told_that_it_is_gone() {
    let house = House::open();
    let worker = house.expect_session_that(true);
    let _client = admitted(&house, &preface(PrefaceKind::Session));
    assert_eq!(worker.receive().unwrap().0, json!({"op": "connection"}));
    let _again = house.connect_with(&Preface::resume(ID, &TICKET, 1, 42));
    assert_eq!(worker.receive().unwrap().0, json!({"op": "resume", "epoch": 1, "received": 42}));
    drop(worker);
    let mut answer = Vec::new();
    house.connect_with(&Preface::resume(ID, &TICKET, 2, 42)).read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"G");
}

#[test]
fn a_wrong_ticket_is_refused_and_the_right_one_still_good() {
    let house = House::open();
    let _worker = house.expect_session();
    let mut wrong = preface(PrefaceKind::Session);
    wrong.ticket[31] ^= 1;
    let mut stranger = house.connect_with(&wrong);
    assert!(!accepted(&mut stranger));
    admitted(&house, &preface(PrefaceKind::Session));
}

#[test]
fn a_lease_lives_as_long_as_its_connection() {
    let house = House::open();
    house.expect_lease();
    let holder = admitted(&house, &preface(PrefaceKind::Lease));
    assert_eq!(house.event(), json!({"op": "lease_held", "id": to_hex(&ID)}));
    drop(holder);
    assert_eq!(house.event(), json!({"op": "lease_gone", "id": to_hex(&ID)}));
}

#[test]
fn a_forgotten_lease_ends_its_connection() {
    let house = House::open();
    house.expect_lease();
    let mut holder = admitted(&house, &preface(PrefaceKind::Lease));
    assert_eq!(house.event()["op"], "lease_held");
    house.control.send(json!({"op": "forget", "id": to_hex(&ID)}), None);
    assert!(at_end(&mut holder));
}

#[test]
fn an_expected_session_that_is_forgotten_lets_its_worker_go() {
    let house = House::open();
    let worker = house.expect_session();
    house.control.send(json!({"op": "forget", "id": to_hex(&ID)}), None);
    assert!(worker.receive().is_none());
}

#[test]
fn strangers_are_shown_out() {
    let house = House::open();
    for (bytes, reason) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "none of the carriers"),
        (&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], "without a certificate"),
        (b"RGP1 too short", "within its preface"),
        (b"RG", "before its preface"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand then no frame", "HTTP/2"),
    ] {
        let mut stream = house.connect();
        stream.write_all(bytes).unwrap();
        // The gateway may have closed already.
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let event = house.event();
        assert!(event["reason"].as_str().unwrap().contains(reason), "{event}");
    }
}

#[test]
fn who_only_knocks_is_no_refusal() {
    let house = House::open();
    let mut probe = house.connect();
    probe.shutdown(Shutdown::Write).unwrap();
    assert!(at_end(&mut probe));
    // The gateway's next report is about the next stranger, not the probe.
    let mut stranger = house.connect();
    stranger.write_all(b"RG").unwrap();
    stranger.shutdown(Shutdown::Write).unwrap();
    let event = house.event();
    assert!(event["reason"].as_str().unwrap().contains("before its preface"), "{event}");
    assert_eq!(event["peer"], stranger.local_addr().unwrap().to_string());
}

#[test]
fn who_says_nothing_is_shown_out_too() {
    let house = House::open();
    let mut silent = house.connect();
    let mut hesitant = house.connect();
    hesitant.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    assert!(at_end(&mut silent));
    let mut rest = Vec::new();
    hesitant.read_to_end(&mut rest).unwrap();
    for _ in 0..2 {
        let event = house.event();
        assert!(event["reason"].as_str().unwrap().contains("within 5 s"), "{event}");
    }
}

#[test]
fn random_bytes_neither_stop_nor_confuse_the_gateway() {
    let house = House::open();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let heads: [&[u8]; 5] = [b"", b"RGP1", b"RGL1", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0x16, 3, 1]];
    let (rounds, mut silent) = (400, 0);
    for round in 0..rounds {
        let mut bytes = heads[round % heads.len()].to_vec();
        bytes.extend((0..random() % 200).map(|_| random() as u8));
        silent += u64::from(bytes.is_empty());
        let mut stream = house.connect();
        // The gateway may close while this still writes.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // All but the silent ones are reported or counted.
    let mut refusals = 0;
    while refusals < rounds as u64 - silent {
        let event = house.event();
        refusals += if event["op"] == "refused" { 1 } else { event["count"].as_u64().unwrap() };
    }
    assert_eq!(refusals, rounds as u64 - silent);
    let _worker = house.expect_session();
    admitted(&house, &preface(PrefaceKind::Session));
}

#[test]
fn orders_that_are_none_are_passed_over() {
    let house = House::open();
    for wrong in [json!({}), json!({"op": "dance"}), json!({"op": "session", "id": "a1", "ticket": "b2"}), json!([1])] {
        house.control.send(wrong, None);
    }
    house.expect_lease();
    admitted(&house, &preface(PrefaceKind::Lease));
}

#[test]
fn the_gateway_leaves_with_the_appliance() {
    let house = House::open();
    drop(house.control);
    house.gateway.join().unwrap();
}

#[test]
fn strangers_leave_room_for_who_has_a_ticket() {
    let house = House::open();
    // More connections than there are places, from several addresses, none of which sends a byte.
    let strangers: Vec<_> = (0..400u16).map(|number| house.connect_from(2 + (number % 8) as u8)).collect();
    let _worker = house.expect_session();
    let mut newcomer = house.connect_with(&preface(PrefaceKind::Session));
    assert!(accepted(&mut newcomer));
    loop {
        let event = house.event();
        if event["op"] == "session_connected" {
            break;
        }
        let reason = event["reason"].as_str().unwrap_or_default();
        assert!(
            !reason.contains("within"),
            "the newcomer did not wait until strangers had used up their time: {event}"
        );
    }
    drop(strangers);
}

#[test]
fn one_address_cannot_have_all_places() {
    let house = House::open();
    let modest = house.connect_from(9);
    let mut greedy: Vec<_> = (0..300).map(|_| house.connect_from(8)).collect();
    assert!(at_end(&mut greedy[0]), "its own oldest connection goes");
    let reason = house.event()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("too many"), "{reason}");
    modest.set_nonblocking(true).unwrap();
    let still = (&modest).read(&mut [0]).unwrap_err();
    assert_eq!(still.kind(), ErrorKind::WouldBlock, "the other address keeps its place");
}

#[test]
fn a_worker_that_reads_nothing_has_few_connections_waiting_and_others_have_theirs() {
    let house = House::open();
    let lazy = house.expect_session_that(true);
    assert!(accepted(&mut house.connect_with(&preface(PrefaceKind::Session))));
    assert_eq!(house.event()["op"], "session_connected");
    let mut waiting = Vec::new();
    // Without room a connection is closed at once; before that each one waits for the worker.
    while waiting.len() < 200 {
        let mut stripe = house.connect_with(&Preface::stripe(ID, &TICKET, 1 + waiting.len() as u64));
        stripe.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        match stripe.read(&mut [0]) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => waiting.push(stripe),
            _ => break,
        }
    }
    assert!((8..64).contains(&waiting.len()), "{} wait for a worker", waiting.len());
    assert_eq!(lazy.receive().unwrap().0["op"], "connection");
    for _ in 0..waiting.len() / 2 {
        assert!(lazy.receive().unwrap().1.is_some());
    }
    let mut another = house.connect_with(&Preface::stripe(ID, &TICKET, 200));
    let taken = std::iter::from_fn(|| lazy.receive()).find(|(packet, _)| packet["number"] == 200);
    TcpStream::from(taken.unwrap().1.unwrap()).write_all(b"K").unwrap();
    assert!(accepted(&mut another), "there is room again");
}
