//! Properties of the wire: decoding reverses encoding, sizes are predicted, truncation is refused, and no count causes
//! a large allocation.

use protocol::{
    Decoder, Extent, HEADER_BYTES, Header, KernelInfo, KernelParam, Launch, LaunchAttribute, LaunchShape, MAX_PAYLOAD,
    Message, ModuleLoad, PREFACE_BYTES, Preface, PrefaceKind, RESUME_BYTES, Reader, STRIPE_BYTES, Wire, Writer,
    reencode, samples,
};

fn encoded<T: Wire>(value: &T) -> Vec<u8> {
    let mut w = Writer::new();
    w.put(value);
    assert_eq!(w.bytes.len(), value.size());
    w.bytes
}

fn launch() -> Launch {
    let attributes = vec![LaunchAttribute { id: 4, value: [9; 8] }];
    let shape = LaunchShape { grid: [1, 2, 3], block: [4, 5, 6], shared: 48, attributes };
    Launch { module: 7, kernel: 3, shape }
}

#[test]
fn every_message_reads_what_it_writes() {
    for (code, bytes) in samples() {
        assert_eq!(reencode(code, &bytes).unwrap(), bytes, "code {code:#x}");
    }
    let mut bytes = encoded(&launch());
    bytes.extend_from_slice(b"params");
    let (read, tail) = Launch::decode(&bytes).unwrap();
    assert_eq!((read, tail), (launch(), &b"params"[..]));
}

#[test]
fn every_truncation_is_refused() {
    for (code, bytes) in samples() {
        for cut in 0..bytes.len() {
            assert!(reencode(code, &bytes[..cut]).is_err(), "code {code:#x} cut at {cut}");
        }
    }
}

#[test]
fn bytes_after_a_message_without_tail_are_refused() {
    let load = ModuleLoad { options: vec![(1, 2)], ..Default::default() };
    let mut bytes = encoded(&load);
    assert!(ModuleLoad::decode(&bytes).is_ok());
    bytes.push(0);
    assert!(ModuleLoad::decode(&bytes).is_err());
}

#[test]
fn every_byte_of_a_message_matters() {
    let original = encoded(&launch());
    for i in 0..original.len() {
        let mut changed = original.clone();
        changed[i] ^= 1;
        match Launch::decode(&changed) {
            Ok((read, tail)) => assert!(read != launch() || !tail.is_empty(), "byte {i} is ignored"),
            Err(_) => continue,
        }
    }
}

#[test]
fn a_count_larger_than_the_message_allocates_nothing() {
    let mut w = Writer::new();
    w.put(&u32::MAX);
    assert!(Reader::new(&w.bytes).get::<Vec<u64>>().is_err());
    assert!(Reader::new(&w.bytes).get::<Vec<KernelInfo>>().is_err());
    assert!(Reader::new(&w.bytes).get::<String>().is_err());
}

#[test]
fn nested_lists_survive() {
    let info = KernelInfo {
        params: vec![KernelParam { offset: 0, size: 8 }, KernelParam { offset: 8, size: 4 }],
        attributes: vec![(0, 1024), (4, -1)],
    };
    let bytes = encoded(&vec![info.clone(), info.clone()]);
    assert_eq!(Reader::new(&bytes).get::<Vec<KernelInfo>>().unwrap(), vec![info.clone(), info]);
}

#[test]
fn frames_are_found_in_any_pieces() {
    let payload = encoded(&Extent { width: 1, height: 2, depth: 3, pitch: 4, slice: 5 });
    let header = Header { len: payload.len() as u32, code: 0x8040, seq: 11, stream_id: 12, ack: 13 };
    let mut stream = Vec::new();
    for _ in 0..3 {
        stream.extend_from_slice(&header.encode());
        stream.extend_from_slice(&payload);
    }
    for step in [1, 7, 31, 33, stream.len()] {
        let mut decoder = Decoder::new();
        let mut seen = 0;
        for piece in stream.chunks(step) {
            decoder.feed(piece);
            while let Some((h, p)) = decoder.next_frame().unwrap() {
                assert_eq!((h, p), (header, &payload[..]));
                seen += 1;
            }
        }
        assert_eq!(seen, 3, "pieces of {step}");
    }
}

#[test]
fn an_oversized_frame_is_refused_from_its_header() {
    let header = Header { len: MAX_PAYLOAD as u32 + 1, ..Default::default() }.encode();
    assert!(Header::decode(&header).is_err());
    let mut decoder = Decoder::new();
    decoder.feed(&header);
    assert!(decoder.next_frame().is_err());
    assert_eq!(header.len(), HEADER_BYTES);
}

#[test]
fn prefaces_name_their_kind() {
    let kinds = [PrefaceKind::Session, PrefaceKind::Lease].map(|kind| Preface { kind, id: [1; 16], ticket: [2; 32] });
    let (resume, stripe) =
        (Preface::resume([1; 16], &[2; 32], 3, u64::MAX), Preface::stripe([1; 16], &[2; 32], u64::MAX - 1));
    for preface in kinds.into_iter().chain([resume, stripe]) {
        let bytes = preface.encode();
        let (first, more) = bytes.split_first_chunk::<PREFACE_BYTES>().expect("a preface");
        let decoded = Preface::decode(first).expect("ours");
        match (<&[u8; RESUME_BYTES]>::try_from(more).ok(), <&[u8; STRIPE_BYTES]>::try_from(more).ok()) {
            (Some(more), _) => assert_eq!(decoded.resumes(more), preface),
            (_, Some(more)) => assert_eq!(decoded.numbered(more), preface),
            (None, None) => assert_eq!(decoded, preface),
        }
    }
    let mut wrong = [0; PREFACE_BYTES];
    wrong[..4].copy_from_slice(b"RGL9");
    assert_eq!(Preface::decode(&wrong), None);
}

#[test]
fn a_proof_is_of_one_attempt() {
    let proof = |id, ticket, epoch, received| Preface::resume(id, &ticket, epoch, received).ticket;
    let one = proof([1; 16], [2; 32], 3, 4);
    for other in [
        proof([9; 16], [2; 32], 3, 4),
        proof([1; 16], [9; 32], 3, 4),
        proof([1; 16], [2; 32], 9, 4),
        proof([1; 16], [2; 32], 3, 9),
    ] {
        assert_ne!(one, other);
    }
    assert_eq!(Preface::resume([1; 16], &[2; 32], 3, 4).expected(&[2; 32]), one);
}

#[test]
fn bundles_hold_their_images_and_no_more() {
    for images in [vec![], vec![&b"one"[..]], vec![&[7; 33][..], &[], &[9; 16]]] {
        let bundle = protocol::bundle_images(&images);
        assert_eq!(protocol::bundled_images(&bundle), Some(images.clone()));
        for len in 0..bundle.len() {
            assert_eq!(protocol::bundled_images(&bundle[..len]), None, "{len}");
        }
    }
    assert_eq!(protocol::bundled_images(b"RGPUIMGS\xff\xff\xff\xff\xff\xff\xff\xff"), None);
    let mut huge = protocol::bundle_images(&[b"x"]);
    huge[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(protocol::bundled_images(&huge), None);
    assert_eq!(protocol::bundled_images(b".version 8.0"), None);
}
