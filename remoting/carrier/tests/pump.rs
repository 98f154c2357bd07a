//! Tests that the end of one side reaches the other.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Returns the client's end and the worker's end, with a pump between them.
fn pumped() -> (UnixStream, UnixStream) {
    let (client, near) = UnixStream::pair().unwrap();
    let (far, worker) = UnixStream::pair().unwrap();
    tokio::spawn(carrier::pump(near, far));
    (client, worker)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(Duration::from_secs(10), test).await.expect("the pump hangs") });
}

/// Reads all bytes until the end. A reset is an end, too: it means that the peer closed with unread bytes.
async fn rest(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

#[test]
fn bytes_pass_both_ways_in_order() {
    run(async {
        let (mut client, mut worker) = pumped();
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            rest(&mut client).await
        });
        assert_eq!(rest(&mut worker).await, expected);
        worker.write_all(b"reply after half-close").await.unwrap();
        drop(worker);
        assert_eq!(writer.await.unwrap(), b"reply after half-close");
    });
}

#[test]
fn last_words_of_the_far_end_arrive_although_the_near_end_still_sends() {
    run(async {
        let (mut client, mut worker) = pumped();
        worker.write_all(b"why I end").await.unwrap();
        drop(worker);
        while client.write_all(&[0; 65536]).await.is_ok() {}
        assert_eq!(rest(&mut client).await, b"why I end");
    });
}

#[test]
fn end_of_the_near_end_reaches_the_far_end() {
    run(async {
        let (client, mut worker) = pumped();
        drop(client);
        assert_eq!(rest(&mut worker).await, b"");
    });
}
