//! A worker process with the software GPU; the test is its appliance and its client.

use super::client::{Client, Link, encode};
use protocol::{ACKNOWLEDGE_BYTES, Acknowledge, Header, Message};
use remotegpu_worker::io::packets::receive_packet;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::net::{send, sendmsg, socketpair};
use serde_json::{Value, json};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time that a read waits for bytes.
const PATIENCE: Duration = Duration::from_millis(2);

/// Descriptors for a child are inheritable for a short time, in which no other child may start.
static SPAWN: Mutex<()> = Mutex::new(());

/// The client's end of a session's connection, and of those that replace it.
pub struct Socket {
    pub stream: UnixStream,
    pub data: Arc<OwnedFd>,
    /// Each connection ends after so many bytes in one direction.
    cut_every: usize,
    pub epoch: u64,
    /// Number of bytes that the worker had received, as it says at each cut.
    pub cuts: Vec<u64>,
    /// Everything that was written, and how much of it was sent on this connection or an earlier one.
    written: Vec<u8>,
    sent: usize,
    received: u64,
    told: u64,
    /// Bytes sent and received on this connection.
    up: usize,
    down: usize,
}

impl Socket {
    fn new(data: OwnedFd) -> Self {
        let (stream, theirs) = pair();
        let data = Arc::new(data);
        pass(&data, theirs.as_fd(), br#"{"op":"connection"}"#);
        let (written, cuts) = (Vec::new(), Vec::new());
        Socket {
            stream,
            data,
            cut_every: usize::MAX,
            epoch: 0,
            cuts,
            written,
            sent: 0,
            received: 0,
            told: 0,
            up: 0,
            down: 0,
        }
    }

    /// Asks for a connection that replaces the last one. Returns it and the number of bytes that the worker has
    /// received; `None` if the worker refused.
    pub fn attempt(&self, epoch: u64, received: u64) -> Option<(UnixStream, u64)> {
        let (mut ours, theirs) = pair();
        pass(
            &self.data,
            theirs.as_fd(),
            format!(r#"{{"op":"resume","epoch":{epoch},"received":{received}}}"#).as_bytes(),
        );
        drop(theirs);
        ours.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let mut answer = [0; 9];
        ours.read_exact(&mut answer).ok()?;
        assert_eq!(answer[0], b'K');
        ours.set_read_timeout(Some(PATIENCE)).expect("timeout");
        Some((ours, u64::from_le_bytes(answer[1..].try_into().expect("8 bytes"))))
    }

    /// From now on ends each connection after so many bytes in one direction.
    pub fn cut(&mut self, every: usize) {
        (self.cut_every, self.up, self.down) = (every, 0, 0);
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    pub fn reconnect(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        self.epoch += 1;
        let (stream, theirs) = self.attempt(self.epoch, self.received).expect("the worker takes it");
        assert!(theirs <= self.written.len() as u64);
        self.cuts.push(theirs);
        (self.stream, self.sent, self.up, self.down) = (stream, theirs as usize, 0, 0);
    }

    /// Sends what the worker has not received.
    pub fn write(&mut self) {
        while self.sent < self.written.len() {
            let room = self.cut_every - self.up;
            let piece = &self.written[self.sent..];
            let count = self.stream.write(&piece[..piece.len().min(room)]).expect("the worker reads");
            (self.sent, self.up) = (self.sent + count, self.up + count);
            if self.up == self.cut_every {
                self.reconnect();
            }
        }
    }
}

impl Link for Socket {
    fn send(&mut self, header: Header, payload: Vec<u8>) {
        self.told = self.received;
        let header = Header { ack: self.received, ..header };
        self.written.extend(encode(&header, &payload));
        self.write();
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; (1 << 20).min(self.cut_every - self.down)];
        let count = match self.stream.read(&mut bytes) {
            Ok(count) => count,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(e) => panic!("connection lost: {e}"),
        };
        bytes.truncate(count);
        (self.received, self.down) = (self.received + count as u64, self.down + count);
        if self.down == self.cut_every {
            self.reconnect();
            self.write();
        }
        if self.received - self.told >= ACKNOWLEDGE_BYTES {
            self.send(Header { code: Acknowledge::CODE, ..Header::default() }, Vec::new());
        }
        bytes
    }
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("socket pair");
    ours.set_read_timeout(Some(PATIENCE)).expect("timeout");
    (ours, theirs)
}

pub struct Worker {
    pub process: Child,
    pub client: Client<Socket>,
    pub control: Arc<OwnedFd>,
    /// Everything that the worker has reported to its appliance.
    pub told: Arc<Mutex<Vec<Value>>>,
    /// Descriptors that it exported.
    pub files: Arc<Mutex<Vec<OwnedFd>>>,
}

/// Returns the path of the software GPU that was built with this test, or of the one that `REMOTEGPU_TEST_DRIVER`
/// names: a library that was built with a sanitizer cannot be loaded by path.
pub fn driver() -> PathBuf {
    if let Some(named) = std::env::var_os("REMOTEGPU_TEST_DRIVER") {
        return named.into();
    }
    let test = std::env::current_exe().expect("this program");
    let folders = test.ancestors().skip(1).take(2);
    folders
        .map(|f| f.join("libsoftgpu.so"))
        .find(|f| f.exists())
        .expect("cargo built the software GPU beside this test")
}

fn inheritable_pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("socket pair");
    fcntl_setfd(&theirs, FdFlags::empty()).expect("inheritable");
    (ours, theirs)
}

pub fn command(profile: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remotegpu-worker"));
    command.arg("--driver").arg(driver()).env("REMOTEGPU_SOFTGPU_PROFILE", profile);
    command.env("REMOTEGPU_SOFTGPU_MEMORY", (4u64 << 30).to_string());
    command
}

impl Worker {
    /// Starts a worker whose lease has `limit` bytes, with a client connected.
    pub fn start(profile: &str, limit: u64) -> Worker {
        Worker::start_with(profile, limit, &[])
    }

    pub fn start_with(profile: &str, limit: u64, environment: &[(&str, &str)]) -> Worker {
        Worker::start_told(profile, limit, environment, &[])
    }

    pub fn start_told(profile: &str, limit: u64, environment: &[(&str, &str)], options: &[&str]) -> Worker {
        Worker::start_taking_turns(profile, limit, environment, options, None)
    }

    /// Starts a worker that takes turns on a socket, and passes the socket's other end to `turns`.
    pub fn start_taking_turns(
        profile: &str,
        limit: u64,
        environment: &[(&str, &str)],
        options: &[&str],
        turns: Option<&dyn Fn(OwnedFd)>,
    ) -> Worker {
        let spawning = SPAWN.lock().unwrap_or_else(|e| e.into_inner());
        let (control, their_control) = inheritable_pair(SocketType::SEQPACKET);
        let (data, their_data) = inheritable_pair(SocketType::SEQPACKET);
        let mut command = command(profile);
        command.envs(environment.iter().copied()).args(options);
        command.args(["--control-fd", &their_control.as_raw_fd().to_string()]);
        command.args(["--data-fd", &their_data.as_raw_fd().to_string()]);
        let (given, taken) = turns.map(|_| inheritable_pair(SocketType::SEQPACKET)).unzip();
        if let Some(taken) = &taken {
            command.args(["--turns-fd", &taken.as_raw_fd().to_string()]);
        }
        let process = command.spawn().expect("worker");
        drop((their_control, their_data, taken, spawning));
        if let (Some(turns), Some(given)) = (turns, given) {
            turns(given);
        }
        let socket = Socket::new(data);
        let (control, told) = (Arc::new(control), Arc::new(Mutex::new(Vec::new())));
        let files = Arc::new(Mutex::new(Vec::new()));
        let (its_control, its_told, its_files) = (control.clone(), told.clone(), files.clone());
        std::thread::spawn(move || appliance(&its_control, &its_told, &its_files, limit));
        Worker { process, client: Client::new(socket), control, told, files }
    }

    pub fn told(&self, op: &str) -> Vec<Value> {
        self.told.lock().expect("list").iter().filter(|v| v["op"] == op).cloned().collect()
    }

    /// Waits for a report with this name, after `earlier` ones, and returns it.
    pub fn wait_told(&self, op: &str, earlier: usize) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let told = self.told(op);
            if told.len() > earlier {
                return told[earlier].clone();
            }
            assert!(Instant::now() < until, "{op} was not told; {:?}", self.told.lock().expect("list"));
            std::thread::sleep(PATIENCE);
        }
    }

    /// Sends the worker an order of its appliance.
    pub fn order(&self, order: &Value, file: Option<BorrowedFd<'_>>) {
        match file {
            Some(file) => pass(&self.control, file, order.to_string().as_bytes()),
            None => drop(send(&self.control, order.to_string().as_bytes(), SendFlags::NOSIGNAL).expect("heard")),
        }
    }

    /// Sends an order to a worker that may have ended.
    pub fn order_if_alive(&self, order: &Value) {
        let _ = send(&self.control, order.to_string().as_bytes(), SendFlags::NOSIGNAL);
    }

    /// Ends the client's connection and waits for the process.
    pub fn hang_up(mut self) -> Vec<Value> {
        self.client.link.stream.shutdown(Shutdown::Both).expect("connected");
        let status = self.process.wait().expect("exit");
        assert!(status.success(), "{status}");
        // Its last messages are still in the socket.
        std::thread::sleep(Duration::from_millis(50));
        std::mem::take(&mut self.told.lock().expect("list"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a packet with a descriptor.
pub fn pass(data: &OwnedFd, descriptor: BorrowedFd<'_>, packet: &[u8]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(data, &[IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL).expect("passed");
}

fn appliance(control: &OwnedFd, told: &Mutex<Vec<Value>>, files: &Mutex<Vec<OwnedFd>>, limit: u64) {
    let (mut packet, mut granted, mut leaving) = (vec![0; 1 << 16], 0, 0);
    // Requests that memory on its way back will satisfy.
    let mut waiting: Vec<Value> = Vec::new();
    while let Ok((count @ 1.., file)) = receive_packet(control.as_fd(), &mut packet, RecvFlags::empty()) {
        files.lock().expect("list").extend(file);
        let request: Value = serde_json::from_slice(&packet[..count]).expect("JSON");
        let number = |key: &str| request[key].as_u64().expect("a number");
        let answer = match request["op"].as_str().expect("op") {
            "grant" if number("least") > limit - granted && number("least") <= limit - granted + leaving => {
                waiting.push(request.clone());
                None
            }
            "grant" => {
                let size = if number("least") > limit - granted { 0 } else { number("want").min(limit - granted) };
                granted += size;
                Some(json!({"op": "granted", "id": number("id"), "size": size}))
            }
            "leaving" => {
                leaving += number("size");
                None
            }
            "return" => {
                // Inherited memory was not granted here.
                granted = granted.saturating_sub(number("size"));
                leaving -= number("size").min(leaving);
                let first = waiting.first().filter(|first| first["least"].as_u64() <= Some(limit - granted)).cloned();
                first.map(|first| {
                    waiting.remove(0);
                    granted += first["least"].as_u64().expect("a number");
                    json!({"op": "granted", "id": first["id"], "size": first["least"]})
                })
            }
            "export" => Some(json!({"op": "exported", "id": number("id"), "token": "ab".repeat(16)})),
            // No other process has it.
            "release" => Some(json!({"op": "released", "token": request["token"], "last": true})),
            "memory" => {
                let free = limit - granted + leaving;
                Some(json!({"op": "memory", "id": number("id"), "limit": limit, "free": free}))
            }
            _ => None,
        };
        told.lock().expect("list").push(request);
        if let Some(answer) = answer {
            let _ = send(control, answer.to_string().as_bytes(), SendFlags::NOSIGNAL);
        }
    }
}
