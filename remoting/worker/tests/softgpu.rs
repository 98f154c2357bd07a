//! The worker's program on the software GPU, in its normal and its hostile profile.

mod common;

use common::client::{CONTEXT, Client, LEGACY, encoded, row};
use common::session::{A, B, CODE, LIMIT, MODULE, PROFILES, PTX, SLAB, floats, start};
use common::worker::{Socket, Worker, command};
use protocol::{
    Callback, CallbackDone, Consumed, ContextCreate, ContextDestroy, ContextLimit, ContextSynchronize, CopyOnDevice,
    CopyToDevice, CopyToHost, EventCreate, EventRecord, EventSynchronize, Extent, Fenced, Grant, HostFunction,
    MemoryQuery, MemoryState, Message, ModuleGlobal, ModuleUnload, Notice, OLDEST_WIRE, Opened, Reader, Rebase,
    StreamSynchronize, Symbol, Text, UNCOUNTED, WIRE_VERSION, function, since,
};

#[test]
fn a_kernel_adds_vectors() {
    for profile in PROFILES {
        let mut t = start(profile);
        let kernel = t.load();
        let n = 10_000u32;
        t.write(LEGACY, 0, &floats((0..n).map(|i| i as f32)));
        t.write(LEGACY, 1 << 20, &floats((0..n).map(|i| 2.0 * i as f32)));
        let parameters = encoded(&((t.base, t.base + (1 << 20)), (t.base + (2 << 20), n)));
        t.launch(LEGACY, kernel("add"), n.div_ceil(128), 128, &parameters);
        assert_eq!(t.read(LEGACY, 2 << 20, 4 * u64::from(n)), floats((0..n).map(|i| 3.0 * i as f32)));
        assert_eq!(t.client().call(0, &ContextSynchronize { context: CONTEXT, launches: UNCOUNTED }, &[]).0, 0);
    }
}

#[test]
fn the_load_tells_what_kernels_take() {
    let mut t = start("normal");
    let (code, loaded) = t.client().load(MODULE, PTX.as_bytes());
    assert_eq!(code, 0);
    let add = loaded.kernels.iter().position(|k| k == "add").expect("add") as u32;
    let add = t.client().describe(MODULE, add).1.expect("description");
    let layout: Vec<_> = add.params.iter().map(|p| (p.offset, p.size)).collect();
    assert_eq!(layout, [(0, 8), (8, 8), (16, 8), (24, 4)]);
    assert!(add.attributes.iter().any(|(id, value)| *id == 0 && *value > 0), "most threads per block");
    let (code, tail) = t.client().call(0, &ModuleGlobal { module: MODULE, name: "counter".into() }, &[]);
    let symbol: Symbol = Reader::new(&tail).get().expect("symbol");
    assert_eq!((code, symbol.size), (0, 4));
    let copy = CopyToHost { context: CONTEXT, address: symbol.address, extent: row(4), offset: 0, len: 4 };
    let seq = t.client().send(LEGACY, &copy, &[]);
    assert_eq!(t.client().host_bytes(seq), (0, 41u32.to_le_bytes().to_vec()));
    assert_eq!(t.client().call(0, &ModuleGlobal { module: MODULE, name: "none".into() }, &[]).0, 500);
    let (code, loaded) =
        t.client().load(6, b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k( { ret; }");
    assert_eq!(code, 218, "{}", loaded.log);
    assert!(!loaded.log.is_empty());
}

#[test]
fn a_kernel_is_launched_only_after_it_was_described() {
    let mut t = start("normal");
    let loaded = t.client().load(MODULE, PTX.as_bytes()).1;
    let kernel = loaded.kernels.iter().position(|k| k == "count").expect("count") as u32;
    t.write(LEGACY, 64, &[0; 4]);
    let parameters = encoded(&(t.base + 64));
    t.launch(LEGACY, kernel, 1, 1, &parameters);
    assert_eq!(t.client().call(LEGACY, &StreamSynchronize { launches: UNCOUNTED }, &[]).0, 400);
    assert_eq!(t.client().describe(MODULE, kernel).1.expect("description").params.len(), 1);
    t.launch(LEGACY, kernel, 1, 1, &parameters);
    assert_eq!(t.read(LEGACY, 64, 4), 1u32.to_le_bytes());
    assert_eq!(t.client().describe(MODULE, 1000).0, 400);
}

#[test]
fn a_spinning_kernel_is_released_by_another_stream_behind_two_thousand_launches() {
    for profile in PROFILES {
        let mut t = start(profile);
        let kernel = t.load();
        t.launch(A, kernel("spin"), 1, 1, &encoded(&t.base));
        for _ in 0..2000 {
            t.launch(B, kernel("count"), 1, 1, &encoded(&(t.base + 64)));
        }
        let waits = t.client().send(A, &StreamSynchronize { launches: UNCOUNTED }, &[]);
        assert_eq!(t.read(B, 64, 4), 2000u32.to_le_bytes());
        assert!(!t.client().has_reply(waits));
        t.write(B, 0, &1u32.to_le_bytes());
        assert_eq!(t.client().reply(waits).0, 0, "{profile}");
    }
}

#[test]
fn two_thousand_launches_wait_behind_a_spinning_kernel() {
    for profile in PROFILES {
        let mut t = start(profile);
        let kernel = t.load();
        t.launch(A, kernel("spin"), 1, 1, &encoded(&t.base));
        for _ in 0..2000 {
            t.launch(A, kernel("count"), 1, 1, &encoded(&(t.base + 64)));
        }
        assert_eq!(t.read(B, 64, 4), 0u32.to_le_bytes());
        t.write(B, 0, &1u32.to_le_bytes());
        assert_eq!(t.synchronize(A), 0);
        assert_eq!(t.read(B, 64, 4), 2000u32.to_le_bytes(), "{profile}");
    }
}

#[test]
fn many_megabytes_go_there_and_back() {
    for profile in PROFILES {
        let mut t = start(profile);
        let bytes: Vec<u8> = (0..48u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        t.write(B, 3, &bytes);
        assert!(t.read(B, 3, bytes.len() as u64) == bytes, "{profile}");
        let consumed = |r: &common::client::Received| match r.code == Consumed::CODE {
            true => Consumed::decode(&r.payload).expect("consumed").0.bytes,
            false => 0,
        };
        assert_eq!(t.client().inbox.iter().map(consumed).sum::<u64>(), bytes.len() as u64);
    }
}

#[test]
fn boxes_are_copied_row_by_row() {
    for profile in PROFILES {
        let mut t = start(profile);
        let extent = Extent { width: 5, height: 3, depth: 2, pitch: 8, slice: 32 };
        let packed: Vec<u8> = (1..=30).collect();
        let copy = CopyToDevice { context: CONTEXT, address: t.base, extent: extent.clone(), offset: 0 };
        t.client().send(B, &copy, &packed);
        let mut expected = vec![0; 64];
        for (i, byte) in packed.iter().enumerate() {
            expected[i / 15 * 32 + i / 5 % 3 * 8 + i % 5] = *byte;
        }
        assert_eq!(t.read(B, 0, 64), expected);
        let back = CopyToHost {
            context: CONTEXT,
            address: t.base,
            extent: extent.clone(),
            offset: 0,
            len: extent.width * extent.height * extent.depth,
        };
        let seq = t.client().send(B, &back, &[]);
        assert_eq!(t.client().host_bytes(seq), (0, packed.clone()));
        let (to, from) = (t.base + 1024, t.base);
        let across = CopyOnDevice { context: CONTEXT, to, to_pitch: 5, to_slice: 15, from, extent };
        t.client().send(B, &across, &[]);
        assert_eq!(t.read(B, 1024, 30), packed);
    }
}

#[test]
fn generated_functions_run_in_their_stream() {
    let mut t = start("hostile");
    let kernel = t.load();
    t.client().send(B, &HostFunction { token: 9 }, &[]);
    let fill = encoded(&((t.base, 0x0102_0304u32), 1000u64));
    t.client().send_raw(function::CU_MEMSET_D32_ASYNC, B, fill);
    t.client().wait("callback", |r| r.code == Callback::CODE);
    assert_eq!(t.read(A, 0, 4), [0; 4]);
    t.client().send(0, &CallbackDone { token: 9 }, &[]);
    assert_eq!(t.read(B, 3996, 8), [4, 3, 2, 1, 0, 0, 0, 0]);
    let query = encoded(&((MODULE, kernel("add")), (128i32, 0u64)));
    let seq = t.client().send_raw(function::CU_OCCUPANCY_MAX_ACTIVE_BLOCKS_PER_MULTIPROCESSOR, 0, query);
    let (code, tail) = t.client().reply(seq);
    assert_eq!((code, tail.len()), (0, 4));
    let seq = t.client().send_raw(function::CU_CTX_GET_LIMIT, 0, encoded(&(77u64, 0u32)));
    assert_eq!(t.client().reply(seq).0, 201);
}

#[test]
fn events_time_what_lies_between_them() {
    let mut t = start("normal");
    let kernel = t.load();
    for event in [1, 2] {
        t.client().send(0, &EventCreate { event, context: CONTEXT, flags: 0 }, &[]);
        t.client().send(B, &EventRecord { event, generation: 1, flags: 0 }, &[]);
        t.launch(B, kernel("count"), 1, 1, &encoded(&t.base));
    }
    assert_eq!(t.client().call(0, &EventSynchronize { event: 2, generation: 1 }, &[]).0, 0);
    let seq = t.client().send_raw(function::CU_EVENT_ELAPSED_TIME, 0, encoded(&(1u64, 2u64)));
    let (code, tail) = t.client().reply(seq);
    let milliseconds: f32 = Reader::new(&tail).get().expect("a float");
    assert!(code == 0 && milliseconds >= 0.0, "{code} {milliseconds}");
}

#[test]
fn memory_is_asked_for_and_returned() {
    let mut t = start("normal");
    assert_eq!(t.client().call(0, &Grant { device: 0, least: LIMIT, want: LIMIT }, &[]).0, 2);
    assert_eq!(t.client().call(0, &Grant { device: 7, least: 1, want: 1 }, &[]).0, 101);
    let (code, tail) = t.client().call(0, &MemoryQuery { device: 0 }, &[]);
    let state: MemoryState = Reader::new(&tail).get().expect("state");
    assert_eq!((code, state), (0, MemoryState { limit: LIMIT, free: LIMIT - SLAB - CODE }));
    let told = t.worker.hang_up();
    assert_eq!(told[0]["op"], "ready");
    // The driver frees the rest when the process has ended; the appliance notices that.
    assert_eq!(told.iter().filter(|v| v["op"] == "return").count(), 0);
    let ends: Vec<_> = told.iter().filter(|v| v["op"] == "ending" || v["op"] == "stats").collect();
    // It reports what it received before it parts with its memory, because it may be killed meanwhile.
    assert_eq!(ends.iter().map(|v| &v["op"]).collect::<Vec<_>>(), ["stats", "ending"]);
}

/// Whether this is all that is left of the grant.
fn has_left(t: &mut common::session::Test, bytes: u64) -> bool {
    let heap = |more| ContextLimit { context: CONTEXT, limit: 2, value: (8 << 20) + bytes + more };
    let fits = [heap(1), heap(0)].map(|most| t.client().call(0, &most, &[]).0);
    let default = ContextLimit { context: CONTEXT, limit: 2, value: 8 << 20 };
    fits == [2, 0] && t.client().call(0, &default, &[]).0 == 0
}

#[test]
fn what_the_driver_takes_was_granted_before() {
    const MIB: u64 = 1 << 20;
    for profile in PROFILES {
        let mut t = start(profile);
        assert!(has_left(&mut t, CODE), "{profile}");
        let (context, threads) = (CONTEXT, 16 * 2048);
        let set = |limit, value| ContextLimit { context, limit, value };
        assert_eq!(t.client().call(0, &set(2, 8 * MIB + CODE), &[]).0, 0);
        assert_eq!(t.client().call(0, &set(1, 2 * MIB), &[]).0, 2, "the heap has it all");
        assert_eq!(t.client().call(0, &set(2, 1), &[]).0, 0, "now it has nothing");
        assert_eq!(t.client().call(0, &set(0, 1024 + CODE / threads), &[]).0, 0);
        assert_eq!(t.client().call(0, &set(1, 2 * MIB), &[]).0, 2, "the stacks have it all");
        assert_eq!(t.client().call(0, &set(0, 1), &[]).0, 0);
        assert_eq!(t.client().call(0, &set(1, 2 * MIB), &[]).0, 0);
        assert_eq!(t.client().call(0, &set(1, u64::MAX), &[]).0, 2);
        assert_eq!(t.client().call(0, &set(3, 1), &[]).0, 215, "nobody knows what that takes");
        assert_eq!(t.client().call(0, &set(1, MIB), &[]).0, 0);
        assert!(has_left(&mut t, CODE), "{profile}");
    }
}

#[test]
fn images_are_counted_by_what_they_hold() {
    let image = format!(".version 7.0 .target sm_80 .address_size 64 .global .b8 a[{}];", CODE / 2).into_bytes();
    let bytes = CODE / 2 + image.len() as u64;
    for profile in PROFILES {
        let mut t = start(profile);
        assert_eq!(t.client().load_as(MODULE, &image, bytes - 1).0, 1, "too little was said");
        assert_eq!(t.client().load_as(MODULE, &image, CODE + 1).0, 2, "more was said than is granted");
        assert!(has_left(&mut t, CODE), "{profile}");
        assert_eq!(t.client().load(MODULE, &image).0, 0);
        assert!(has_left(&mut t, CODE - bytes), "{profile}");
        assert_eq!(t.client().load(MODULE + 1, &image).0, 2, "there is no room for another one");
        t.client().send(0, &ModuleUnload { module: MODULE, token: 3 }, &[]);
        t.client().wait("fence", |r| r.code == Fenced::CODE);
        assert!(has_left(&mut t, CODE), "{profile}");
    }
}

#[test]
fn with_a_context_goes_what_was_counted_for_it() {
    for profile in PROFILES {
        let mut t = start(profile);
        t.client().send(0, &ContextCreate { context: 7, legacy_stream: 70, ..Default::default() }, &[]);
        assert_eq!(t.client().call(0, &ContextLimit { context: 7, limit: 2, value: (8 << 20) + CODE }, &[]).0, 0);
        assert!(has_left(&mut t, 0), "{profile}");
        t.client().send(0, &ContextDestroy { context: 7, token: 3 }, &[]);
        t.client().wait("fence", |r| r.code == Fenced::CODE);
        assert!(has_left(&mut t, CODE), "{profile}");
        t.client().send(0, &ContextDestroy { context: 7, token: 4 }, &[]);
        t.client().wait("fence of what is gone", |r| {
            r.code == Fenced::CODE && Fenced::decode(&r.payload).is_ok_and(|(fenced, _)| fenced.token == 4)
        });
    }
}

#[test]
fn the_arena_moves_when_the_client_cannot_have_it() {
    for profile in PROFILES {
        let mut worker = Worker::start(profile, LIMIT);
        let first = worker.client.open();
        let (code, tail) = worker.client.call(0, &Rebase { avoid: first.arena_base }, &[]);
        let second: Opened = Reader::new(&tail).get().expect("opened");
        assert_eq!(code, 0);
        assert!(second.arena_base >= first.arena_base + first.arena_size || second.arena_base < first.arena_base);
        assert_eq!(worker.client.call(0, &Rebase { avoid: first.arena_base }, &[]).0, 1);
    }
}

#[test]
fn a_snapshot_shows_devices_without_what_is_not_provided() {
    let output = command("normal").arg("--snapshot").output().expect("runs");
    let snapshot: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let device = &snapshot["devices"][0];
    assert!(snapshot["driver_version"].as_i64() >= Some(12_000));
    assert_eq!(snapshot["table_hash"], protocol::TABLE_HASH);
    assert_eq!(device["uuid"].as_str().expect("uuid").len(), 32);
    assert_eq!(device["attributes"]["10"], 32, "threads of a warp");
    assert_eq!(device["attributes"]["83"], 1, "managed memory");
    assert_eq!(device["attributes"]["89"], 0, "managed memory that host and device use at a time");
}

#[test]
fn kernels_print_before_the_synchronisation_answers() {
    const PRINTING: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 format[8] = {104, 101, 108, 108, 111, 33, 10, 0};
.visible .entry hello()
{
    .reg .b64 %d<3>;
    mov.u64 %d1, format;
    cvta.global.u64 %d1, %d1;
    mov.u64 %d2, 0;
    {
    .param .b64 p0;
    st.param.b64 [p0], %d1;
    .param .b64 p1;
    st.param.b64 [p1], %d2;
    .param .b32 p2;
    call.uni (p2), vprintf, (p0, p1);
    }
    ret;
}
"#;
    let mut t = start("normal");
    let (code, loaded) = t.client().load(MODULE, PRINTING.as_bytes());
    assert_eq!(code, 0, "{}", loaded.log);
    assert_eq!(t.client().describe(MODULE, 0).0, 0);
    t.launch(B, 0, 1, 2, &[]);
    let seq = t.client().send(B, &StreamSynchronize { launches: UNCOUNTED }, &[]);
    assert_eq!(t.client().reply(seq).0, 0);
    let printed = t.client().inbox.iter().filter(|r| r.code == Text::CODE);
    let printed: Vec<_> = printed.map(|r| Text::decode(&r.payload).expect("text")).collect();
    assert!(printed.iter().all(|(text, _)| !text.stderr));
    assert_eq!(printed.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect::<Vec<u8>>(), b"hello!\nhello!\n");
}

#[test]
fn a_further_context_of_a_device_is_charged_to_the_share() {
    const EACH: u64 = 64 << 20;
    let budget = format!("context-bytes={EACH}");
    let mut worker = Worker::start_told("normal", 2 * EACH, &[], &["--budget", &budget]);
    let client = &mut worker.client;
    client.open();
    let free = |client: &mut Client<Socket>| {
        let (code, tail) = client.call(0, &MemoryQuery { device: 0 }, &[]);
        assert_eq!(code, 0);
        Reader::new(&tail).get::<MemoryState>().expect("state").free
    };
    let create = |context: u64| ContextCreate { context, legacy_stream: 100 + context, ..Default::default() };
    let wait = |client: &mut Client<Socket>, context| {
        client.call(0, &ContextSynchronize { context, launches: UNCOUNTED }, &[]).0
    };
    assert_eq!((wait(client, CONTEXT), free(client)), (0, 2 * EACH), "the first is not charged");
    for (context, left) in [(2, EACH), (3, 0)] {
        client.send(0, &create(context), &[]);
        assert_eq!((wait(client, context), free(client)), (0, left));
    }
    client.send(0, &create(4), &[]);
    assert_eq!(wait(client, 4), 2, "there is no share left for it");
    assert_eq!(wait(client, CONTEXT), 2, "and the next command that waits tells it, too");
    client.send(0, &ContextDestroy { context: 2, token: 7 }, &[]);
    client.wait("the end", |r| r.code == Fenced::CODE);
    assert_eq!(free(client), EACH);
    client.send(0, &create(5), &[]);
    assert_eq!((wait(client, 5), free(client)), (0, 0));
}

#[test]
fn a_session_has_no_more_objects_than_its_budget() {
    for wire_version in OLDEST_WIRE..=WIRE_VERSION {
        has_no_more_than_its_budget(wire_version);
    }
}

fn has_no_more_than_its_budget(wire_version: u32) {
    let options = ["--budget", "streams=3", "--budget", "events=2", "--budget", "contexts=2"];
    let mut worker = Worker::start_told("normal", LIMIT, &[], &options);
    let client = &mut worker.client;
    client.open_in(wire_version);
    // The next command that waits reports the refusal once more.
    let told_late = |client: &mut Client<Socket>| {
        client.call(0, &ContextSynchronize { context: CONTEXT, launches: UNCOUNTED }, &[]).0
    };
    // With the context's own stream there is room for two.
    for (stream, code) in [(20, 0), (21, 0), (22, 2)] {
        client.stream(stream, 0, 0);
        assert_eq!(client.call(stream, &StreamSynchronize { launches: UNCOUNTED }, &[]).0, code);
        assert_eq!(told_late(client), code);
    }
    for (event, code) in [(30, 0), (31, 0), (32, 2)] {
        client.send(0, &EventCreate { event, context: CONTEXT, flags: 0 }, &[]);
        assert_eq!(told_late(client), code);
    }
    for (context, code) in [(40, 0), (41, 2)] {
        client.send(0, &ContextCreate { context, legacy_stream: 100 + context, ..Default::default() }, &[]);
        assert_eq!(client.call(0, &ContextSynchronize { context, launches: UNCOUNTED }, &[]).0, code);
    }
    let notices = client.inbox.iter().filter(|r| r.code == Notice::CODE);
    let notices: Vec<_> = notices.map(|r| Notice::decode(&r.payload).expect("a notice").0.line).collect();
    let told = worker.hang_up();
    let lines: Vec<_> = told.iter().map(|packet| packet["line"].to_string()).collect();
    // The client gets the same lines as the appliance, if its version has such a message.
    let times = usize::from(wire_version >= since(Notice::CODE));
    for kind in ["3 streams", "2 events", "2 contexts"] {
        assert_eq!(lines.iter().filter(|line| line.contains(kind)).count(), 1, "{kind}: {lines:?}");
        assert_eq!(notices.iter().filter(|line| line.contains(kind)).count(), times, "{kind}: {notices:?}");
    }
}

#[test]
fn a_worker_dumps_no_memory_and_has_as_many_threads_as_it_is_told() {
    let mut worker = Worker::start_told("normal", LIMIT, &[], &["--threads", "500"]);
    worker.client.open();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", worker.process.id())).expect("limits");
    let hard = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).expect("the limit");
        line.trim_start_matches(name).split_whitespace().nth(1).expect("two values").to_owned()
    };
    assert_eq!(
        [hard("Max core file size"), hard("Max processes")],
        ["1", "500"],
        "1: no file, and none for a program either"
    );
}

#[test]
fn the_stack_of_a_kernel_is_charged_to_the_share() {
    const DEEP: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.visible .entry deep(.param .u64 at)
{
    .local .align 8 .b8 frame[3072];
    .reg .b64 %d<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %d1, [at];
    cvta.to.global.u64 %d1, %d1;
    mov.u64 %d2, frame;
    mov.u32 %r1, 7;
    st.local.u32 [%d2], %r1;
    ld.local.u32 %r1, [%d2];
    st.global.u32 [%d1], %r1;
    ret;
}
"#;
    // 2 KiB beyond the default, for 16 multiprocessors of 2,048 threads.
    const STACKS: u64 = (2 << 10) * 16 * 2048;
    let free = |client: &mut Client<Socket>| {
        let (_, tail) = client.call(0, &MemoryQuery { device: 0 }, &[]);
        Reader::new(&tail).get::<MemoryState>().expect("state").free
    };
    for (limit, code) in [(CODE + STACKS, 0), (CODE + STACKS - 1, 2)] {
        let mut worker = Worker::start("normal", limit);
        let client = &mut worker.client;
        client.open();
        assert_eq!(client.call(0, &Grant { device: 0, least: CODE, want: CODE }, &[]).0, 0);
        assert_eq!(client.load(MODULE, DEEP.as_bytes()).0, 0);
        assert_eq!(client.describe(MODULE, 0).0, code, "{limit}");
        assert_eq!(free(client), if code == 0 { 0 } else { STACKS - 1 });
        client.send(0, &ContextDestroy { context: CONTEXT, token: 7 }, &[]);
        client.wait("the end", |r| r.code == Fenced::CODE);
        assert_eq!(free(client), limit - CODE, "it goes with the context");
    }
}
