//! A limit on the bytes that are read from an unauthenticated connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::probation::Probation;

/// Limit on the bytes of one read before the connection is authenticated.
const PIECE: usize = 4096;

/// A stream that reads no more than its ration of bytes until the connection is authenticated. Further bytes stay in
/// the socket, and their sender has to wait. Therefore TLS or HTTP/2 cannot buffer more of an unauthenticated peer.
pub struct Rationed<S> {
    inner: S,
    /// The bytes left, and the probation whose end removes the limit. `None` after the limit was removed.
    left: Option<(usize, Arc<Probation>)>,
    proved: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> Rationed<S> {
    pub fn new(inner: S, ration: usize, probation: &Arc<Probation>) -> Self {
        Rationed { inner, left: Some((ration, probation.clone())), proved: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rationed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some((left, probation)) = &mut this.left else {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        };
        if probation.is_known() || *left == 0 {
            if !probation.is_known() {
                let proved = this.proved.get_or_insert_with(|| Box::pin(probation.clone().proved()));
                ready!(proved.as_mut().poll(cx));
            }
            (this.left, this.proved) = (None, None);
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let mut room = [0; PIECE];
        let most = PIECE.min(*left).min(buf.remaining());
        let mut piece = ReadBuf::new(&mut room[..most]);
        ready!(Pin::new(&mut this.inner).poll_read(cx, &mut piece))?;
        *left -= piece.filled().len();
        buf.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rationed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::probation::{Door, Most};
    use super::*;

    #[tokio::test]
    async fn what_a_stranger_sends_beyond_its_ration_is_read_when_it_is_known() {
        let any = Most { in_all: 1, of_peer: 1 };
        let door = Door::new(Duration::from_secs(60), any, any);
        let probation = Probation::new(&door, IpAddr::V4(Ipv4Addr::LOCALHOST));
        let (mut theirs, ours) = tokio::io::duplex(1 << 20);
        let sent: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
        theirs.write_all(&sent).await.unwrap();
        drop(theirs);
        let mut rationed = Rationed::new(ours, 10_000, &probation);
        let mut received = vec![0; 10_000];
        rationed.read_exact(&mut received).await.unwrap();
        let mut more = Box::pin(rationed.read_to_end(&mut received));
        assert!(futures_poll(&mut more).await.is_pending(), "its ration is used up");
        probation.pass();
        more.await.unwrap();
        assert_eq!(received, sent);
    }

    async fn futures_poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
        std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
    }
}
