//! A limit on the open calls of an unauthenticated connection. gRPC's library needs kilobytes for each call.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::gateway::strangers::limits::MOST_CALLS;
use crate::gateway::strangers::probation::Probation;

/// The bytes that a client sends before its first frame (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// The length of a frame's header, the types of frames, and the flag of a call's last frame (RFC 9113, 4.1 and 6).
const HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
/// Limit on the bytes of one read before the connection is authenticated.
const PIECE: usize = 4096;

/// A stream of HTTP/2 on which an unauthenticated client has few calls open: the header of a further call waits here,
/// with all that follows it, until one was answered or the connection is authenticated.
pub struct FewCalls<S> {
    inner: S,
    /// `None` after the connection was authenticated.
    watched: Option<Watched>,
}

struct Watched {
    probation: Arc<Probation>,
    from_client: Frames,
    to_client: Frames,
    room: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> FewCalls<S> {
    /// Wraps the client's stream, from its first byte.
    pub fn new(inner: S, probation: &Arc<Probation>) -> Self {
        let (from_client, to_client) = (Frames { left: PREFACE, ..Frames::default() }, Frames::default());
        FewCalls { inner, watched: Some(Watched { probation: probation.clone(), from_client, to_client, room: None }) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FewCalls<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let Some(watched) = &mut this.watched else {
                return Pin::new(&mut this.inner).poll_read(cx, buf);
            };
            let Watched { probation, from_client, room, .. } = watched;
            if probation.is_known() {
                from_client.passed = from_client.bytes.len();
                if from_client.passed == 0 {
                    this.watched = None;
                    continue;
                }
            }
            if from_client.passed > 0 {
                buf.put_slice(&from_client.take(buf.remaining()));
                return Poll::Ready(Ok(()));
            }
            if from_client.header().is_some() {
                ready!(room.get_or_insert_with(|| Box::pin(probation.clone().room(MOST_CALLS))).as_mut().poll(cx));
                *room = None;
            } else {
                let mut space = [0; PIECE];
                let mut piece = ReadBuf::new(&mut space);
                ready!(Pin::new(&mut this.inner).poll_read(cx, &mut piece))?;
                if piece.filled().is_empty() {
                    return Poll::Ready(Ok(()));
                }
                from_client.bytes.extend_from_slice(piece.filled());
            }
            let may_begin = |frame: &Frame| {
                probation.calls(|calls| {
                    if frame.kind == HEADERS && !calls.contains_key(&frame.stream) {
                        if calls.len() >= MOST_CALLS {
                            return false;
                        }
                        calls.insert(frame.stream, false);
                    }
                    true
                })
            };
            from_client.pass(may_begin, |frame| {
                if frame.ends_its_stream() {
                    probation.calls(|calls| {
                        if let Some(complete) = calls.get_mut(&frame.stream) {
                            *complete = true;
                        }
                    });
                }
            });
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FewCalls<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let len = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        if let Some(Watched { probation, to_client, .. }) = &mut this.watched {
            to_client.bytes.extend_from_slice(&buf[..len]);
            // A call that the client resets keeps its place until the server has answered it, which the library does not
            // do, or until the connection ends. Else a client would open and reset calls as fast as it can.
            let ended = |frame: &Frame| {
                if frame.ends_its_stream() || frame.kind == RST_STREAM {
                    probation.calls(|calls| calls.remove(&frame.stream));
                }
            };
            to_client.pass(|_| true, ended);
            to_client.take(usize::MAX);
        }
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// The header of a frame.
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Frame {
    fn ends_its_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// The bytes of one direction, cut at the headers of frames.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
    /// The number of bytes at the beginning that may be passed on.
    passed: usize,
    /// The number of bytes behind these that belong to the frame before, and this frame until its end has passed.
    left: usize,
    begun: Option<Frame>,
}

impl Frames {
    /// Passes bytes on, up to the first frame that `may_begin` refuses, or whose header is not complete. Calls `ended`
    /// for each frame that has passed as a whole.
    fn pass(&mut self, mut may_begin: impl FnMut(&Frame) -> bool, mut ended: impl FnMut(&Frame)) {
        loop {
            let more = self.left.min(self.bytes.len() - self.passed);
            (self.passed, self.left) = (self.passed + more, self.left - more);
            if self.left == 0 {
                self.begun.take().iter().for_each(&mut ended);
            }
            let Some((frame, len)) = self.header() else { return };
            if !may_begin(&frame) {
                return;
            }
            (self.passed, self.left, self.begun) = (self.passed + HEADER, len, Some(frame));
        }
    }

    /// Returns the header of the next frame and the length of what follows it, if the header is complete.
    fn header(&self) -> Option<(Frame, usize)> {
        if self.left > 0 {
            return None;
        }
        let header = self.bytes[self.passed..].first_chunk::<HEADER>()?;
        let &[a, b, c, kind, flags, s0, s1, s2, s3] = header;
        let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
        Some((Frame { kind, flags, stream }, u32::from_be_bytes([0, a, b, c]) as usize))
    }

    /// Removes and returns bytes that may be passed on, at most `most`.
    fn take(&mut self, most: usize) -> Vec<u8> {
        let len = self.passed.min(most);
        self.passed -= len;
        self.bytes.drain(..len).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::gateway::strangers::probation::{Door, Most};

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// Returns the bytes of a client that opens `count` calls, after its preface and its settings.
    fn calls(count: u32) -> Vec<u8> {
        let call = |number| [frame(HEADERS, 4, 2 * number + 1, b"headers"), frame(DATA, 1, 2 * number + 1, &[7; 300])];
        let begin = [vec![b'P'; PREFACE], frame(4, 0, 0, &[])];
        begin.into_iter().chain((0..count).flat_map(call)).flatten().collect()
    }

    fn stranger(patience: Duration) -> (DuplexStream, FewCalls<DuplexStream>, Arc<Probation>) {
        let any = Most { in_all: 1, of_peer: 1 };
        let probation = Probation::new(&Door::new(patience, any, any), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let (theirs, ours) = tokio::io::duplex(1 << 20);
        (theirs, FewCalls::new(ours, &probation), probation)
    }

    /// Reads all that is passed on now.
    async fn read_all(few: &mut FewCalls<DuplexStream>) -> Vec<u8> {
        let mut read = Vec::new();
        let mut part = [0; 7];
        loop {
            let mut next = std::pin::pin!(few.read(&mut part));
            match std::future::poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await {
                Poll::Ready(len) => read.extend_from_slice(&part[..len.unwrap()]),
                Poll::Pending => return read,
            }
        }
    }

    #[tokio::test]
    async fn a_fifth_call_waits_for_an_answer_and_a_known_client_for_nothing() {
        for piece in [1, 10, 4000] {
            let (mut theirs, mut few, probation) = stranger(Duration::from_secs(600));
            for bytes in calls(9).chunks(piece) {
                theirs.write_all(bytes).await.unwrap();
            }
            assert_eq!(read_all(&mut few).await, calls(4));
            // Only the end of an answer makes room, and it makes room once.
            few.write_all(&frame(HEADERS, 4, 3, b"begin")).await.unwrap();
            assert_eq!(read_all(&mut few).await, b"");
            let answer = [frame(DATA, 0, 3, b"more"), frame(HEADERS, 5, 3, b"end"), frame(RST_STREAM, 0, 3, &[0; 4])];
            for bytes in answer.concat().chunks(piece) {
                few.write_all(bytes).await.unwrap();
            }
            assert_eq!([calls(4), read_all(&mut few).await].concat(), calls(5));
            probation.pass();
            assert_eq!([calls(5), read_all(&mut few).await].concat(), calls(9));
            assert!(few.watched.is_none(), "a client that is known costs nothing");
        }
    }

    #[tokio::test]
    async fn who_has_sent_a_whole_call_may_stay_until_it_is_answered() {
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(8));
        let (mut theirs, mut few, probation) = stranger(short);
        theirs.write_all(&calls(1)).await.unwrap();
        read_all(&mut few).await;
        assert!(tokio::time::timeout(20 * short, probation.over()).await.is_err(), "the appliance was not asked");
        few.write_all(&frame(HEADERS, 5, 1, b"refused")).await.unwrap();
        assert!(tokio::time::timeout(long, probation.over()).await.is_ok());

        let (mut theirs, mut few, probation) = stranger(short);
        theirs.write_all(&calls(1)[..100]).await.unwrap();
        read_all(&mut few).await;
        assert!(tokio::time::timeout(long, probation.over()).await.is_ok(), "a part of a call does not count");
    }
}
