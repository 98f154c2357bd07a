//! Reaching an appliance, over every carrier; and what a person reads when that does not work.

mod appliance;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use appliance::{Appliance, Certificate, stranger};
use remotegpu_client::connect::{
    self, Ca, Carrier, ConnectError, ErrorKind, Hello, Patience, SessionTicket, Share, Wish, device_state,
    offload_hello, open_data_over, open_fds, open_offload_session, open_session,
};
use rustix::net::sockopt::tcp_user_timeout;

fn hello(share: &Share) -> Result<Hello, ConnectError> {
    connect::hello(share, Patience::First)
}

const CARRIERS: [Carrier; 3] = [Carrier::Auto, Carrier::Direct, Carrier::Grpc];

fn appliances() -> [Appliance; 2] {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    [Appliance::start(None), Appliance::start(Some(Certificate::new(&number.to_string())))]
}

/// A session's two ends.
fn connect(appliance: &Appliance, carrier: Carrier) -> (UnixStream, File) {
    let worker = appliance.expect_session();
    let client = open_data_over(carrier, &appliance.share(), &appliance.hello(), &appliance.ticket(), &[]).unwrap();
    // Reads and writes go to the descriptor whatever its family.
    let client = UnixStream::from(client);
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (client, worker())
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

#[test]
fn every_carrier_carries_bytes_both_ways() {
    for appliance in appliances() {
        for carrier in CARRIERS {
            let (mut client, mut worker) = connect(&appliance, carrier);
            let sent = noise(5_000_003);
            let expected = sent.clone();
            let echo = std::thread::spawn(move || {
                let mut got = vec![0; 5_000_003];
                worker.read_exact(&mut got).unwrap();
                worker.write_all(&got).unwrap();
            });
            let mut writer = client.try_clone().unwrap();
            let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            assert!(got == expected, "{carrier:?}");
            echo.join().unwrap();
            writing.join().unwrap();
        }
    }
}

#[test]
fn the_first_frame_reaches_the_worker_with_the_ticket_over_every_carrier() {
    for appliance in appliances() {
        let beside = appliance.data_socket.display().to_string();
        for (carrier, data_socket) in
            CARRIERS.map(|carrier| (carrier, String::new())).into_iter().chain([(Carrier::Auto, beside)])
        {
            let worker = appliance.expect_session();
            let ticket = SessionTicket { data_socket, ..appliance.ticket() };
            let client = open_data_over(carrier, &appliance.share(), &appliance.hello(), &ticket, b"first").unwrap();
            UnixStream::from(client.try_clone().unwrap()).write_all(b" second").unwrap();
            let mut got = [0; 12];
            worker().read_exact(&mut got).unwrap();
            assert_eq!(&got, b"first second", "{carrier:?}");
        }
    }
}

#[test]
fn nobody_waits_for_the_ticket_to_be_accepted_before_the_first_frame_leaves() {
    let plain = Appliance::start(None);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let ticket = SessionTicket { data_port: listener.local_addr().unwrap().port(), ..plain.ticket() };
    let slow = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut first = [0; protocol::PREFACE_BYTES + 5];
        peer.read_exact(&mut first).unwrap();
        peer.write_all(&[carrier::ACCEPTED]).unwrap();
        first.split_at(protocol::PREFACE_BYTES).1.to_vec()
    });
    open_data_over(Carrier::Direct, &plain.share(), &plain.hello(), &ticket, b"first").unwrap();
    assert_eq!(slow.join().unwrap(), b"first");
}

#[test]
fn where_a_session_has_moved_to_is_heard_though_its_first_frame_was_not_read() {
    for (i, appliance) in appliances().into_iter().enumerate() {
        let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        appliance.move_session(&format!("127.0.0.1:{nobody}"), nobody);
        for (j, carrier) in CARRIERS.into_iter().enumerate() {
            // This process remembers what it learned of one lease.
            let share = Share { lease_id: format!("{i}{j}"), ..appliance.share() };
            let opened = open_data_over(carrier, &share, &appliance.hello(), &appliance.ticket(), &[7; 400]);
            says(opened, ErrorKind::Unreachable, &[&format!("127.0.0.1:{nobody}"), "nothing listens"]);
        }
    }
}

#[test]
fn a_client_beside_its_appliance_takes_the_socket_there_and_tcp_without_one() {
    let [plain, tls] = appliances();
    let named = |appliance: &Appliance| {
        let data_socket = appliance.data_socket.display().to_string();
        SessionTicket { data_socket, ..appliance.ticket() }
    };
    let takes = |appliance: &Appliance, carrier, ticket: &SessionTicket| {
        let worker = appliance.expect_session();
        let client = open_data_over(carrier, &appliance.share(), &appliance.hello(), ticket, &[]).unwrap();
        let (mut client, mut worker) = (UnixStream::from(client), worker());
        client.write_all(b"frame").unwrap();
        let mut got = [0; 5];
        worker.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"frame");
        // Fails for a socket of another family.
        let peer = client.peer_addr().ok();
        peer.and_then(|peer| Some(peer.as_pathname()? == appliance.data_socket)).unwrap_or(false)
    };
    let ticket = named(&plain);
    assert!(takes(&plain, Carrier::Auto, &ticket));
    assert!(!takes(&plain, Carrier::Direct, &ticket), "TCP was asked for");
    assert!(!takes(&tls, Carrier::Auto, &named(&tls)), "what had TLS has it here too");
    std::fs::remove_file(&plain.data_socket).unwrap();
    assert!(!takes(&plain, Carrier::Auto, &ticket), "the file is gone");
}

#[test]
fn the_end_of_either_side_reaches_the_other() {
    for appliance in appliances() {
        for carrier in CARRIERS {
            let (mut client, worker) = connect(&appliance, carrier);
            drop(worker);
            assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)), "{carrier:?}");
            let (client, mut worker) = connect(&appliance, carrier);
            drop(client);
            assert!(matches!(worker.read(&mut [0]), Ok(0) | Err(_)), "{carrier:?}");
        }
    }
}

#[test]
fn the_last_words_of_a_worker_arrive() {
    for appliance in appliances() {
        for carrier in CARRIERS {
            let (mut client, mut worker) = connect(&appliance, carrier);
            worker.write_all(b"ending: drained").unwrap();
            drop(worker);
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            assert_eq!(got, b"ending: drained", "{carrier:?}");
        }
    }
}

#[test]
fn a_worker_that_does_not_read_is_waited_for() {
    let [_, tls] = appliances();
    let (mut client, mut worker) = connect(&tls, Carrier::Direct);
    client.set_nonblocking(true).unwrap();
    let (piece, mut sent, begun) = (noise(1 << 16), 0, Instant::now());
    // Only this connection, of all that are open here, has a peer that does not read.
    let lifted = || {
        open_fds().any(|fd| {
            // SAFETY: a descriptor of this process; one that was closed is an error.
            tcp_user_timeout(unsafe { BorrowedFd::borrow_raw(fd) }) == Ok(0)
        })
    };
    while !lifted() {
        assert!(begun.elapsed() < Duration::from_secs(6), "the connection would be lost after 8 s");
        match client.write(&piece) {
            Ok(count) => sent += count,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    let reading = std::thread::spawn(move || std::io::copy(&mut worker, &mut std::io::sink()).unwrap());
    while lifted() {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(client);
    assert_eq!(reading.join().unwrap(), sent as u64);
}

#[test]
fn sockets_inside_are_listed_for_a_forked_child() {
    let [plain, _] = appliances();
    let (client, mut worker) = connect(&plain, Carrier::Grpc);
    let listed: Vec<_> = open_fds().collect();
    assert!(listed.len() >= 2, "the connection and the pump's end of the pair: {listed:?}");
    assert!(!listed.contains(&client.as_raw_fd()), "that one is its owner's");
    drop(client);
    let _ = worker.read(&mut [0]);
}

#[test]
fn an_offload_session_is_of_an_environment_and_no_table_need_fit() {
    for appliance in appliances() {
        let share = appliance.share();
        let hello = offload_hello(&share, Patience::First).unwrap();
        let [environment] = &hello.environments[..] else { panic!("{hello:?}") };
        assert_eq!((environment.name.as_str(), environment.backend.as_str()), ("torch", "cpu"));
        assert_eq!((environment.python.as_str(), &environment.packages["torch"][..]), ("3.12.4", "2.15.0"));
        let wish = Wish {
            environment: "mine".into(),
            backends: vec!["rocm".into(), "cpu".into()],
            python: "3.12.9".into(),
            packages: [("torch".into(), "2.15.1".into())].into(),
            allow_skew: true,
            pid: 7,
            process_name: "python train.py".into(),
        };
        let (ticket, environment) = open_offload_session(&share, &hello, &wish).unwrap();
        assert_eq!((ticket, environment.name.as_str()), (appliance.ticket(), "mine"));
        let full = Share { lease_secret: "full".into(), ..share };
        let error = open_offload_session(&full, &hello, &wish).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy);
    }
}

#[test]
fn control_calls_bring_what_the_appliance_says() {
    for appliance in appliances() {
        let share = appliance.share();
        let hello = hello(&share).unwrap();
        assert_eq!((hello.driver_version, hello.driver_release.as_str()), (13040, "580.65.06"));
        assert_eq!((hello.data_port, hello.tls), (appliance.data_port, share.ca.is_some()));
        let [device] = &hello.devices[..] else { panic!("{hello:?}") };
        assert_eq!((device.name.as_str(), device.uuid, device.memory_bytes), ("Test GPU", [0xab; 16], 1 << 30));
        assert_eq!((device.pci, &device.attributes), ([1, 2, 3], &[(75, 8), (76, 0)].into()));
        assert_eq!(open_session(&share, &hello).unwrap(), appliance.ticket());
        let state = device_state(&share).unwrap();
        assert_eq!((state[0].memory_used_bytes, state[0].gpu_utilization_percent), (5, Some(30)));
        assert_eq!((state[0].temperature_celsius, state[0].processes[0].pid), (None, 42));
    }
}

/// The error, which has the kind and names all parts.
fn says<T: std::fmt::Debug>(result: Result<T, ConnectError>, kind: ErrorKind, parts: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    for part in parts {
        assert!(error.message.contains(part), "no `{part}` in: {error}");
    }
    assert!(!error.message.contains('\n'));
}

fn elsewhere(share: Share, port: u16) -> Share {
    Share { endpoint: format!("127.0.0.1:{port}"), ..share }
}

#[test]
fn what_is_not_there_is_named() {
    let [plain, _] = appliances();
    let share = plain.share();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{nobody}");
    says(hello(&elsewhere(share.clone(), nobody)), ErrorKind::Unreachable, &["nothing listens at", &address, "start"]);
    let unknown = Share { endpoint: "no-such-host.invalid:7070".into(), ..share.clone() };
    says(hello(&unknown), ErrorKind::Unreachable, &["no-such-host.invalid:7070", "correct the address"]);
    for (reply, closes) in [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], true), (b"", true), (b"SSH-2.0-x\r\n", false)] {
        let port = stranger(reply, closes);
        let peer = format!("127.0.0.1:{port}");
        says(
            hello(&elsewhere(share.clone(), port)),
            ErrorKind::NotAnAppliance,
            &[&peer, "is not a remotegpu appliance"],
        );
    }
    let parts = ["speaks gRPC but", "correct the port"];
    says(hello(&elsewhere(share, plain.data_port)), ErrorKind::NotAnAppliance, &parts);
}

#[test]
fn who_does_not_answer_is_given_up() {
    let [plain, tls] = appliances();
    for share in [plain.share(), tls.share()] {
        let started = Instant::now();
        says(hello(&elsewhere(share, stranger(b"", false))), ErrorKind::Timeout, &["no answer from", "within 5 s"]);
        assert!(started.elapsed() < Duration::from_secs(8), "the promise is 5 s");
    }
}

#[test]
fn tls_and_plaintext_do_not_mix_silently() {
    let [plain, tls] = appliances();
    let without = Share { ca: None, ..tls.share() };
    says(hello(&without), ErrorKind::Tls, &["demands TLS", "CA file"]);
    let with = Share { ca: tls.share().ca, ..plain.share() };
    says(hello(&with), ErrorKind::Tls, &["does not speak TLS", &with.ca.clone().unwrap().to_string()]);
    for carrier in CARRIERS {
        let worker = tls.expect_session();
        let unlike = open_data_over(carrier, &without, &tls.hello(), &tls.ticket(), &[]);
        says(unlike, ErrorKind::Tls, &["TLS"]);
        drop(worker);
    }
}

#[test]
fn a_certificate_that_does_not_fit_is_named_with_what_it_was_checked_against() {
    let [_, tls] = appliances();
    let other = Certificate::new("other");
    let other_ca = other.ca.display().to_string();
    let share = tls.share();
    let unknown = Share { ca: Some(Ca::File(other_ca.clone())), ..share.clone() };
    says(hello(&unknown), ErrorKind::Tls, &[&share.endpoint, "not signed by", &other_ca]);
    let misnamed = Share { server_name: None, ..share.clone() };
    says(hello(&misnamed), ErrorKind::Tls, &[&share.endpoint, "localhost", "127.0.0.1", "server_name"]);
    let missing = Share { ca: Some(Ca::File("/nowhere/ca.pem".into())), ..share.clone() };
    says(hello(&missing), ErrorKind::Tls, &["/nowhere/ca.pem", "cannot be used"]);
    let key = tls.certificate_chain().unwrap().with_file_name("key.pem").display().to_string();
    says(hello(&Share { ca: Some(Ca::File(key.clone())), ..share }), ErrorKind::Tls, &[&key, "it holds none"]);
}

#[test]
fn refusals_name_the_reason() {
    for appliance in appliances() {
        let share = appliance.share();
        let stranger = Share { lease_id: "ff".repeat(16), ..share.clone() };
        for result in [hello(&stranger).map(drop), device_state(&stranger).map(drop)] {
            says(result, ErrorKind::Refused, &[&share.endpoint, "no such lease", "remotegpu run"]);
        }
        let old = Share { lease_secret: "another version".into(), ..share.clone() };
        says(hello(&old), ErrorKind::Version, &["remotegpu 9.9.9", "remotegpu 0.1.0", "do not fit"]);
        let full = Share { lease_secret: "full".into(), ..share.clone() };
        says(open_session(&full, &appliance.hello()), ErrorKind::Busy, &["8 of 8 sessions"]);
        for (carrier, opening) in CARRIERS.into_iter().flat_map(|carrier| [(carrier, &[][..]), (carrier, &[7; 400])]) {
            let result = open_data_over(carrier, &share, &appliance.hello(), &appliance.ticket(), opening);
            says(result, ErrorKind::Refused, &[&format!(":{}", appliance.data_port), "ticket"]);
        }
    }
}
