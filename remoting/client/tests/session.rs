//! A session against a worker that the test plays, over a socket pair.

mod worker;

use protocol::{
    BULK_CHUNK, Callback, CallbackDone, Consumed, ContextSynchronize, CopyToDevice, CopyToDeviceLate, CopyToHost,
    Ending, EventDone, Extent, Fenced, Gate, GateOpen, HEADER_BYTES, Header, HostBytes, HostFunction, Launch, Message,
    NeedBytes, Reply, SEND_WINDOW, StreamSynchronize, SupplyBytes, SupplyCancel, UNCOUNTED, Writer,
};
use remotegpu_client::session::{DeviceBox, HostBox, PeerSource, Progress, Session};
use rustix::net::sockopt::{set_socket_recv_buffer_size, tcp_user_timeout};
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use worker::{Worker, frame};

const EXTERNAL_DEVICE: u32 = 911;
const LAUNCH_FAILED: u32 = 719;

fn reply(worker: &mut Worker, seq: u64, code: u32) {
    worker.push(seq, &Reply { code }, &[]);
}

/// A session whose arena is small and lies where nothing else is.
fn start() -> (Arc<Session>, Worker) {
    let (ours, theirs) = UnixStream::pair().expect("socket pair");
    start_on(ours.into(), theirs.into())
}

/// A session over TCP whose worker's kernel takes only some KiB; and the session's socket once more.
fn start_on_tcp() -> (Arc<Session>, Worker, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listens");
    set_socket_recv_buffer_size(&listener, 4096).expect("a small buffer");
    let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
    carrier::configure(&ours).expect("a TCP socket");
    let (seen, theirs) = (ours.try_clone().expect("a descriptor"), listener.accept().expect("accepts").0);
    let (session, worker) = start_on(ours.into(), theirs.into());
    (session, worker, seen)
}

fn start_on(ours: OwnedFd, theirs: OwnedFd) -> (Arc<Session>, Worker) {
    worker::start(protocol::WIRE_VERSION, ours, theirs, None)
}

/// Waits until the kernel gives up on the peer after so long without a sign that it reads; 0 is never.
fn wait_for_timeout(socket: &TcpStream, milliseconds: u32) {
    let begun = Instant::now();
    while tcp_user_timeout(socket).expect("a TCP socket") != milliseconds {
        assert!(begun.elapsed() < Duration::from_secs(6), "the connection would be lost after 8 s");
        thread::sleep(Duration::from_millis(10));
    }
}

fn extent(width: u64, height: u64) -> Extent {
    Extent { width, height, depth: 1, pitch: width, slice: width * height }
}

fn device(len: u64) -> DeviceBox {
    DeviceBox { context: 1, address: 4096, extent: extent(len, 1) }
}

fn launch(kernel: u32) -> Launch {
    Launch { kernel, ..Launch::default() }
}

#[test]
fn a_worker_of_an_older_version_is_sent_nothing_that_it_lacks() {
    const NOT_SUPPORTED: u32 = 801;
    for wire in protocol::OLDEST_WIRE..=protocol::WIRE_VERSION {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let (session, mut worker) = worker::start(wire, ours.into(), theirs.into(), None);
        for (code, bytes) in protocol::samples() {
            let sent = session.tell_raw(code, 0, &bytes);
            if protocol::since(code) > wire {
                assert_eq!(sent, Err(NOT_SUPPORTED), "code {code:#x} in version {wire}");
            } else {
                sent.expect("sent");
                let frame = worker.next().expect("a frame");
                assert_eq!(frame.header.code, code, "and nothing before it, in version {wire}");
            }
        }
    }
}

#[test]
fn all_threads_make_one_sequence_and_each_gets_its_own_answer() {
    const THREADS: u32 = 16;
    const ROUNDS: u32 = 50;
    let (session, mut worker) = start();
    let player = thread::spawn(move || {
        let (mut next, mut order, mut asked) = (2, vec![Vec::new(); THREADS as usize], Vec::new());
        for _ in 0..THREADS * ROUNDS * 4 {
            let frame = worker.next().expect("a frame");
            assert_eq!(frame.header.seq, next, "numbers have no gap and no twin");
            next += 1;
            if frame.header.code == Launch::CODE {
                let kernel = Launch::decode(&frame.payload).expect("launch").0.kernel;
                order[(kernel / 1000) as usize].push(kernel % 1000);
                continue;
            }
            asked.push((frame.header.seq, ContextSynchronize::decode(&frame.payload).expect("sync").0.context));
            // Answers come late and in another order than the questions.
            if asked.len() == THREADS as usize {
                for (seq, context) in asked.drain(..).rev() {
                    worker.push(seq, &Reply { code: 0 }, &context.to_le_bytes());
                }
            }
        }
        order
    });
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for id in 0..THREADS {
            let (session, barrier) = (&session, &barrier);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    for step in 0..3 {
                        session.post(0, &launch(id * 1000 + round * 3 + step)).expect("posted");
                    }
                    barrier.wait();
                    let context = u64::from(id * 1000 + round);
                    let reply =
                        session.call(0, &ContextSynchronize { context, launches: UNCOUNTED }).expect("answered");
                    assert_eq!(reply.decode::<u64>(), Ok(context));
                }
            });
        }
    });
    let order = player.join().expect("player");
    assert!(order.iter().all(|kernels| kernels.iter().copied().eq(0..ROUNDS * 3)));
}

#[test]
fn commands_leave_although_nobody_waits() {
    let (session, mut worker) = start();
    for round in 0..3 {
        session.post(7, &launch(round)).expect("posted");
        let (header, launch, _) = worker.expect::<Launch>();
        assert_eq!((header.stream_id, launch.kernel), (7, round));
        thread::sleep(Duration::from_millis(20)); // long enough for the background thread to go to sleep
    }
}

#[test]
fn what_is_done_beside_a_wait_begins_when_the_question_has_left_and_is_sent() {
    let (session, mut worker) = start();
    let (tell, has_left) = mpsc::channel();
    let waiting = thread::spawn(move || {
        session.synchronise_stream_beside(5, || {
            has_left.recv_timeout(Duration::from_secs(10)).expect("the question has left");
            session.post(6, &launch(9)).map(drop)
        })
    });
    let question = worker.expect::<StreamSynchronize>().0;
    tell.send(()).expect("a thread that waits");
    assert_eq!(worker.expect::<Launch>().1.kernel, 9);
    reply(&mut worker, question.seq, 0);
    assert_eq!(waiting.join().expect("a wait"), Ok(()));
}

#[test]
fn a_wait_without_a_round_trip_sends_what_was_appended_and_tells_errors() {
    let (session, mut worker) = start();
    for round in 0..200 {
        session.post(7, &launch(round)).expect("posted");
        session.wait_for_nothing().expect("no error");
        // The background thread would send it some time later.
        worker.socket.set_nonblocking(true).expect("a socket");
        assert!(worker.next().is_some(), "round {round}");
        worker.socket.set_nonblocking(false).expect("a socket");
    }
    for (code, then) in [(2, Ok(())), (LAUNCH_FAILED, Err(LAUNCH_FAILED))] {
        thread::scope(|scope| {
            let settling = scope.spawn(|| session.settle_stream(7));
            let question = worker.expect::<StreamSynchronize>().0;
            reply(&mut worker, question.seq, code);
            assert_eq!(settling.join().expect("a wait"), Ok(()));
        });
        assert_eq!((session.wait_for_nothing(), session.wait_for_nothing()), (Err(code), then));
    }
}

#[test]
fn a_frame_tells_how_many_bytes_were_received() {
    let (session, mut worker) = start();
    let player = thread::spawn(move || {
        let (first, ..) = worker.expect::<StreamSynchronize>();
        reply(&mut worker, first.seq, 0);
        let (second, ..) = worker.expect::<StreamSynchronize>();
        reply(&mut worker, second.seq, 0);
        second.ack - first.ack
    });
    for _ in 0..2 {
        session.call(1, &StreamSynchronize { launches: UNCOUNTED }).expect("answered");
    }
    let mut reply = Writer::new();
    reply.put(&Reply { code: 0 });
    assert_eq!(player.join().expect("player"), (HEADER_BYTES + reply.bytes.len()) as u64);
}

#[test]
fn a_lost_connection_fails_everybody_who_waits_and_everything_after() {
    let (session, mut worker) = start();
    let barrier = Arc::new(Barrier::new(9));
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let (session, barrier) = (Arc::clone(&session), Arc::clone(&barrier));
            thread::spawn(move || {
                barrier.wait();
                session.call(0, &StreamSynchronize { launches: UNCOUNTED }).map(drop)
            })
        })
        .collect();
    barrier.wait();
    for _ in 0..8 {
        worker.expect::<StreamSynchronize>();
    }
    drop(worker);
    for thread in waiting {
        assert_eq!(thread.join().expect("no panic"), Err(EXTERNAL_DEVICE));
    }
    assert_eq!(session.call(0, &StreamSynchronize { launches: UNCOUNTED }).map(drop), Err(EXTERNAL_DEVICE));
    assert_eq!(session.post(0, &launch(0)).map(drop), Err(EXTERNAL_DEVICE));
}

#[test]
fn a_call_that_cannot_be_sent_fails_the_session_before_it_returns() {
    for _ in 0..50 {
        let (session, worker) = start();
        // Sending fails, and there is nothing to read that would say so.
        worker.socket.shutdown(Shutdown::Read).expect("shut down");
        session.post(0, &launch(1)).expect("kept, or sent in the background");
        assert_eq!((session.flush(), session.check()), (Err(EXTERNAL_DEVICE), Err(EXTERNAL_DEVICE)));
    }
}

#[test]
fn an_ending_is_noticed_although_nobody_waits() {
    let (session, mut worker) = start();
    worker.push(0, &Ending { code: LAUNCH_FAILED, reason: "the test says so".into() }, &[]);
    while session.check().is_ok() {
        thread::yield_now();
    }
    assert_eq!(session.check(), Err(LAUNCH_FAILED));
}

#[test]
fn sticky_errors_stick_and_others_do_not() {
    let (session, mut worker) = start();
    let player = thread::spawn(move || {
        for code in [1, LAUNCH_FAILED] {
            let (header, ..) = worker.expect::<StreamSynchronize>();
            reply(&mut worker, header.seq, code);
        }
    });
    assert_eq!(session.call(0, &StreamSynchronize { launches: UNCOUNTED }).expect("answered").code, 1);
    assert_eq!(session.check(), Ok(()));
    assert_eq!(session.call(0, &StreamSynchronize { launches: UNCOUNTED }).expect("answered").code, LAUNCH_FAILED);
    assert_eq!(session.post(0, &launch(0)).map(drop), Err(LAUNCH_FAILED));
    player.join().expect("player");
}

#[test]
fn bytes_land_in_the_rows_they_belong_to() {
    let (session, mut worker) = start();
    let packed: Vec<u8> = (0..60_000u32 * 3).map(|i| (i * 7) as u8).collect();
    let sent = packed.clone();
    let player = thread::spawn(move || {
        let (header, copy, _) = worker.expect::<CopyToHost>();
        assert_eq!((copy.extent.width, copy.extent.height), (60_000, 3));
        for (offset, piece) in [(100_000, &sent[100_000..]), (0, &sent[..31]), (31, &sent[31..100_000])] {
            worker.push(header.seq, &HostBytes { offset }, piece);
        }
        reply(&mut worker, header.seq, 0);
    });
    let mut memory = vec![0xeeu8; 70_000 * 3];
    let base = memory.as_mut_ptr().expose_provenance();
    let to = HostBox { base, width: 60_000, height: 3, depth: 1, pitch: 70_000, slice: 210_000 };
    let from = DeviceBox { context: 1, address: 0, extent: extent(60_000, 3) };
    session.copy_to_host(1, &to, &from).expect("copied");
    player.join().expect("player");
    for (row, expected) in memory.chunks(70_000).zip(packed.chunks(60_000)) {
        assert_eq!(&row[..60_000], expected);
        assert!(row[60_000..].iter().all(|byte| *byte == 0xee), "the gap is untouched");
    }
}

#[test]
fn bytes_beyond_a_copy_end_the_session_and_touch_nothing() {
    for offset in [9, 16, u64::MAX] {
        let (session, mut worker) = start();
        let player = thread::spawn(move || {
            let (header, ..) = worker.expect::<CopyToHost>();
            worker.push(header.seq, &HostBytes { offset }, &[1; 8]);
            worker
        });
        let mut memory = [0xeeu8; 32];
        let to = HostBox::linear(memory.as_mut_ptr().expose_provenance(), 16);
        assert_eq!(session.copy_to_host(1, &to, &device(16)), Err(EXTERNAL_DEVICE));
        assert_eq!(memory, [0xee; 32]);
        player.join().expect("player");
    }
}

#[test]
fn captured_bytes_may_change_after_the_call() {
    let (session, mut worker) = start();
    let mut source = [5u8; 100];
    let from = HostBox::linear(source.as_mut_ptr().expose_provenance(), 100);
    session.copy_to_device(1, &device(100), &from, true).expect("sent");
    source.fill(6);
    session.flush().expect("flushed");
    let (_, copy, tail) = worker.expect::<CopyToDevice>();
    assert_eq!((copy.offset, tail), (0, vec![5; 100]));
    assert_eq!(source[0], 6);
}

#[test]
fn the_window_holds_back_what_the_worker_has_no_room_for() {
    let (session, mut worker) = start();
    const WINDOW: u64 = SEND_WINDOW - BULK_CHUNK as u64;
    let len = WINDOW + 1;
    let source = vec![3u8; len as usize];
    let from = HostBox::linear(source.as_ptr().expose_provenance(), len);
    let (sender, copied) = mpsc::channel();
    thread::scope(|scope| {
        let session = &session;
        scope.spawn(move || sender.send(session.copy_to_device(1, &device(len), &from, true)));
        let mut got = 0;
        while got < WINDOW {
            got += worker.expect::<CopyToDevice>().2.len() as u64;
        }
        assert!(copied.try_recv().is_err(), "the last byte has no room");
        worker.push(0, &Consumed { bytes: 1 << 20 }, &[]);
        assert_eq!(worker.expect::<CopyToDevice>().2.len(), 1);
        assert_eq!(copied.recv(), Ok(Ok(())));
    });
}

#[test]
fn a_worker_that_does_not_read_in_the_middle_of_a_copy_is_waited_for() {
    let (session, mut worker, socket) = start_on_tcp();
    let source = vec![3u8; 8 << 20];
    let len = source.len() as u64;
    let from = HostBox::linear(source.as_ptr().expose_provenance(), len);
    thread::scope(|scope| {
        let copying = scope.spawn(|| session.copy_to_device(1, &device(len), &from, true));
        wait_for_timeout(&socket, 0);
        let mut got = 0;
        while got < len {
            got += worker.expect::<CopyToDevice>().2.len() as u64;
        }
        assert_eq!(copying.join().expect("no panic"), Ok(()));
    });
    wait_for_timeout(&socket, 8_000);
}

#[test]
fn commands_that_nobody_reads_are_waited_for_although_nobody_waits() {
    const LAUNCHES: u32 = 10_000;
    let (session, mut worker, socket) = start_on_tcp();
    for kernel in 0..LAUNCHES {
        session.post(1, &launch(kernel)).expect("posted");
    }
    wait_for_timeout(&socket, 0);
    for kernel in 0..LAUNCHES {
        assert_eq!(worker.expect::<Launch>().1.kernel, kernel);
    }
    wait_for_timeout(&socket, 8_000);
}

#[test]
fn late_bytes_are_read_when_they_are_asked_for() {
    let (session, mut worker) = start();
    let mut source = [1u8; 64];
    let from = HostBox::linear(source.as_mut_ptr().expose_provenance(), 64);
    session.copy_to_device_late(4, &device(64), &from).expect("sent");
    source.fill(2);
    let (header, ..) = worker.expect::<CopyToDeviceLate>();
    assert!(session.is_in_use(&from));
    worker.push(header.seq, &NeedBytes { offset: 16, len: 48 }, &[]);
    let (_, supplied, tail) = worker.expect::<SupplyBytes>();
    assert_eq!((supplied.command, supplied.offset, tail), (header.seq, 16, vec![2; 48]));
    worker.push(header.seq, &NeedBytes { offset: 60, len: 5 }, &[]);
    while session.check().is_ok() {
        thread::yield_now();
    }
    assert_eq!(session.check(), Err(EXTERNAL_DEVICE), "more was asked for than the copy has");
}

fn peer_source(session: &Arc<Session>, told: &Arc<Session>) -> PeerSource {
    let (session, told) = (Arc::clone(session), Arc::clone(told));
    PeerSource { session, stream_id: 9, memory: device(64), told, guard: Box::new(()) }
}

#[test]
fn a_copy_from_another_session_fetches_what_is_asked_for() {
    let ((from, mut source), (to, mut target)) = (start(), start());
    to.copy_from_peer(4, &device(64), peer_source(&from, &to)).expect("sent");
    let (late, ..) = target.expect::<CopyToDeviceLate>();
    for (offset, value) in [(0, 3), (40, 5)] {
        target.push(late.seq, &NeedBytes { offset, len: 24 }, &[]);
        let (read, asked, _) = source.expect::<CopyToHost>();
        assert_eq!((read.stream_id, asked.address, asked.offset, asked.len), (9, 4096, offset, 24));
        source.push(read.seq, &HostBytes { offset: 0 }, &[value; 24]);
        reply(&mut source, read.seq, 0);
        let (_, supplied, bytes) = target.expect::<SupplyBytes>();
        assert_eq!((supplied.command, supplied.offset, bytes), (late.seq, offset, vec![value; 24]));
    }
}

#[test]
fn a_lost_session_is_told_by_the_streams_that_waited_for_it() {
    let ((from, mut source), (to, mut target)) = (start(), start());
    let gate = to.post_gate(4).expect("sent");
    from.call_then(7, &StreamSynchronize { launches: UNCOUNTED }, Box::new(move |code| gate.open(code)));
    to.copy_from_peer(5, &device(64), peer_source(&from, &to)).expect("sent");
    let (held, closed, _) = target.expect::<Gate>();
    let (late, ..) = target.expect::<CopyToDeviceLate>();
    assert_eq!((held.stream_id, source.expect::<StreamSynchronize>().0.stream_id), (4, 7));
    target.push(late.seq, &NeedBytes { offset: 0, len: 64 }, &[]);
    source.expect::<CopyToHost>();
    drop(source);
    assert_eq!(target.expect::<GateOpen>().1.token, closed.token);
    assert_eq!(target.expect::<SupplyCancel>().1.command, late.seq);
    let player = thread::spawn(move || {
        for _ in 0..2 {
            let seq = target.expect::<StreamSynchronize>().0.seq;
            reply(&mut target, seq, 0);
        }
    });
    assert_eq!(to.synchronise(4, &StreamSynchronize { launches: UNCOUNTED }), Err(EXTERNAL_DEVICE), "told once");
    assert_eq!(to.synchronise(4, &StreamSynchronize { launches: UNCOUNTED }), Ok(()));
    player.join().expect("player");
    // A call on the lost session fails at once.
    let (sender, told) = mpsc::channel();
    from.call_then(
        7,
        &StreamSynchronize { launches: UNCOUNTED },
        Box::new(move |code| sender.send(code).expect("told")),
    );
    assert_eq!(told.recv(), Ok(EXTERNAL_DEVICE));
}

#[test]
fn pushes_reach_fences_events_and_host_functions() {
    let (session, mut worker) = start();
    let progress = Arc::new(Progress::default());
    session.follow_event(33, &progress);
    let (token, fence) = session.new_fence();
    let (sender, called) = mpsc::channel();
    let call = move |status| {
        let _ = sender.send(status);
    };
    session.post_callback(5, Box::new(call)).expect("posted");
    assert!(session.has_callbacks() && !fence.is_finished());
    let (header, function, _) = worker.expect::<HostFunction>();
    assert_eq!(header.stream_id, 5);
    worker.push(0, &EventDone { event: 33, generation: 2, code: 0 }, &[]);
    worker.push(0, &Fenced { token }, &[]);
    worker.push(0, &Callback { token: function.token }, &[]);
    assert_eq!(called.recv(), Ok(0));
    assert_eq!(worker.expect::<CallbackDone>().1.token, function.token);
    assert_eq!(progress.done.load(SeqCst), 2);
    assert_eq!(session.wait(&fence).map(|reply| reply.code), Ok(0));
}

/// A program may wait for its host function without a call of CUDA.
#[test]
fn what_arrives_with_an_answer_is_not_left_until_more_arrives() {
    let (session, mut worker) = start();
    let (sender, called) = mpsc::channel();
    let call = move |status| {
        let _ = sender.send(status);
    };
    session.post_callback(5, Box::new(call)).expect("posted");
    let player = thread::spawn(move || {
        let token = worker.expect::<HostFunction>().1.token;
        let seq = worker.expect::<StreamSynchronize>().0.seq;
        let both = [frame(seq, &Reply { code: 0 }, &[]), frame(0, &Callback { token }, &[])].concat();
        worker.socket.write_all(&both).expect("written");
        worker
    });
    session.call(5, &StreamSynchronize { launches: UNCOUNTED }).expect("answered");
    let _worker = player.join().expect("player");
    assert_eq!(called.recv_timeout(Duration::from_secs(20)), Ok(0));
}

#[test]
fn what_is_no_frame_ends_the_session() {
    for garbage in [vec![0xff; 64], Header { code: 0xc0ff, ..Header::default() }.encode().to_vec()] {
        let (session, mut worker) = start();
        worker.socket.write_all(&garbage).expect("written");
        assert_eq!(session.call(0, &StreamSynchronize { launches: UNCOUNTED }).map(drop), Err(EXTERNAL_DEVICE));
    }
}

/// Asks on a thread of its own. The answer comes within 10 s, or the thread waits for a reader that there is not.
fn asked(session: &Arc<Session>) -> mpsc::Receiver<Result<u32, u32>> {
    let (sender, answered) = mpsc::channel();
    let session = Arc::clone(session);
    let sync = ContextSynchronize { context: 1, launches: UNCOUNTED };
    thread::spawn(move || sender.send(session.call(0, &sync).map(|reply| reply.code)));
    answered
}

const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn a_fault_in_the_reader_ends_the_session_and_nobody_waits_for_it() {
    let (session, mut worker) = start();
    session.call_then(0, &StreamSynchronize { launches: UNCOUNTED }, Box::new(|_| panic!("wrong on purpose")));
    let (first, ..) = worker.expect::<StreamSynchronize>();
    let waiting: Vec<_> = (0..3).map(|_| asked(&session)).collect();
    waiting.iter().for_each(|_| drop(worker.expect::<ContextSynchronize>()));
    reply(&mut worker, first.seq, 0);
    for answered in waiting {
        let answered = answered.recv_timeout(LIMIT).expect("the role of the reader (`Lead`) stays taken");
        assert_eq!(answered, Err(EXTERNAL_DEVICE));
    }
    assert_eq!(session.check(), Err(EXTERNAL_DEVICE), "and so does each later call");
}

#[test]
fn a_fault_in_the_reader_ends_the_session_although_nobody_waits() {
    let (session, mut worker) = start();
    session.call_then(0, &StreamSynchronize { launches: UNCOUNTED }, Box::new(|_| panic!("wrong on purpose")));
    let (told, others) = mpsc::channel();
    let other = move |code| told.send(code).expect("the test waits");
    session.call_then(0, &StreamSynchronize { launches: UNCOUNTED }, Box::new(other));
    let (first, ..) = worker.expect::<StreamSynchronize>();
    reply(&mut worker, first.seq, 0);
    assert_eq!(others.recv_timeout(LIMIT), Ok(EXTERNAL_DEVICE), "the others know that no answer comes");
    assert_eq!(asked(&session).recv_timeout(LIMIT), Ok(Err(EXTERNAL_DEVICE)));
}

#[test]
fn a_fault_in_a_thread_of_the_session_ends_it() {
    for posts in [Session::post_callback, Session::post_wait] {
        let (session, mut worker) = start();
        posts(&session, 7, Box::new(|_| panic!("wrong on purpose"))).expect("posted");
        let answered = asked(&session);
        let (_, HostFunction { token }, _) = worker.expect::<HostFunction>();
        worker.expect::<ContextSynchronize>();
        worker.push(0, &Callback { token }, &[]);
        let answered = answered.recv_timeout(LIMIT).expect("the stream waits for the host function for ever");
        assert_eq!(answered, Err(EXTERNAL_DEVICE));
    }
}

#[test]
fn the_library_can_send_however_much_of_the_program_waits_for_its_streams() {
    let (session, mut worker) = start();
    let player = thread::spawn(move || while worker.next().is_some() {});
    // What a stream does not reach is never released.
    while session.has_window(BULK_CHUNK as u64) {
        session.reserve_window(BULK_CHUNK as u64).expect("reserved");
    }
    let (sender, sent) = mpsc::channel();
    let own = Arc::clone(&session);
    thread::spawn(move || sender.send(own.reserve_window_of_library(BULK_CHUNK as u64)));
    sent.recv_timeout(LIMIT).expect("a mirror waits for the program's streams under the lock `Mirror`").expect("room");
    drop(session);
    drop(player);
}
