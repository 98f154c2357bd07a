//! Forwards bytes in both directions if a connection cannot be handed over.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::READ_BYTES;

/// The size of a read until one was full. Most connections never send so much at once, and a gateway has thousands.
const FIRST_READ_BYTES: usize = 8 << 10;

/// The reason why one direction ended.
enum End {
    /// The source reached EOF.
    Finished,
    /// A read from the source failed.
    SourceLost(io::Error),
    /// The destination accepts no more bytes.
    DestinationLost,
}

/// Forwards bytes between the `near` end and the `far` end. The far end decides when the session ends.
///
/// - The far end finishes or fails: after delivery of all its bytes both ends are closed.
/// - The near end finishes: the far end gets EOF, and may still send.
/// - The near end fails: both ends are closed.
/// - The far end accepts no more bytes: its own bytes, which may contain the reason, are still delivered.
///
/// # Errors
/// The far end's error, if it failed.
pub async fn pump<N, F>(near: N, far: F) -> io::Result<()>
where
    N: AsyncRead + AsyncWrite,
    F: AsyncRead + AsyncWrite,
{
    let (mut near_reader, mut near_writer) = tokio::io::split(near);
    let (mut far_reader, mut far_writer) = tokio::io::split(far);
    let outward = copy_one_way(&mut near_reader, &mut far_writer);
    let inward = copy_one_way(&mut far_reader, &mut near_writer);
    tokio::pin!(outward, inward);
    tokio::select! {
        end = &mut inward => return far_end(end),
        end = &mut outward => if let End::SourceLost(_) = end {
            return Ok(());
        }
    }
    far_end(inward.await)
}

/// Forwards bytes in one direction until the source ends, then shuts the destination down.
///
/// # Errors
/// If the source fails.
pub async fn copy(source: impl AsyncRead + Unpin, destination: impl AsyncWrite + Unpin) -> io::Result<()> {
    far_end(copy_one_way(source, destination).await)
}

fn far_end(end: End) -> io::Result<()> {
    match end {
        End::SourceLost(error) => Err(error),
        End::Finished | End::DestinationLost => Ok(()),
    }
}

async fn copy_one_way(mut source: impl AsyncRead + Unpin, mut destination: impl AsyncWrite + Unpin) -> End {
    let mut buffer = vec![0; FIRST_READ_BYTES];
    let end = loop {
        let len = match source.read(&mut buffer).await {
            Ok(0) => break End::Finished,
            Ok(len) => len,
            Err(error) => break End::SourceLost(error),
        };
        // TLS buffers bytes that it could not send: without the flush a small frame might stay in the buffer.
        if destination.write_all(&buffer[..len]).await.is_err() || destination.flush().await.is_err() {
            return End::DestinationLost;
        }
        if len == buffer.len() {
            buffer.resize(READ_BYTES, 0);
        }
    };
    // An error is ignored: the destination may be closed already.
    let _ = destination.shutdown().await;
    end
}
