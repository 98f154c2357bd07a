//! A connection whose first bytes were already read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that reads `head` first, and then the connection's further bytes.
#[derive(Debug)]
pub struct Rewind<S> {
    head: [u8; 4],
    read: usize,
    inner: S,
}

impl<S> Rewind<S> {
    pub fn new(head: [u8; 4], inner: S) -> Self {
        Rewind { head, read: 0, inner }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewind<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let head = &this.head[this.read..];
        if head.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let len = head.len().min(buf.remaining());
        buf.put_slice(&head[..len]);
        this.read += len;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewind<S> {
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
