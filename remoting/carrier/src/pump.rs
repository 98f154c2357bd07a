//! Passing bytes both ways where a connection cannot be handed over as it is.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::READ_BYTES;

/// How one direction ended.
enum End {
    /// The source said that no more bytes come.
    Finished,
    /// The source failed.
    SourceLost(io::Error),
    /// The destination takes no more bytes.
    DestinationLost,
}

/// Passes bytes between the `near` end and the `far` end, which is the one that decides when the session is over.
///
/// - The far end finishes or fails: all that it sent has been delivered, both ends are closed.
/// - The near end finishes: the far end is told, and may still send.
/// - The near end fails: both ends are closed.
/// - The far end takes no more bytes: it may have said why, so what it sent is still delivered.
///
/// # Errors
/// The far end's failure, if that is how it ended.
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

/// Passes bytes one way until the source ends; then the destination is told.
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
    let mut buffer = vec![0; READ_BYTES];
    let end = loop {
        let len = match source.read(&mut buffer).await {
            Ok(0) => break End::Finished,
            Ok(len) => len,
            Err(error) => break End::SourceLost(error),
        };
        // TLS keeps what it could not send: without the flush a small frame might stay behind.
        if destination.write_all(&buffer[..len]).await.is_err() || destination.flush().await.is_err() {
            return End::DestinationLost;
        }
    };
    // The destination may already be gone; then it has nothing to learn.
    let _ = destination.shutdown().await;
    end
}
