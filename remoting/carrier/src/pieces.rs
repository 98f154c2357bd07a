//! Conversion of a byte stream to messages of the gRPC method `Data/Session`, and back.

use std::io;

use tokio::io::AsyncRead;
use tokio_stream::{Stream, StreamExt};
use tokio_util::io::{ReaderStream, StreamReader};
use tonic::{Status, Streaming};

use crate::READ_BYTES;
use crate::proto::Piece;

/// Converts a byte stream to pieces. Each read becomes one piece, so that a small frame is not delayed. A read error
/// ends the stream, and the other end sees the end of the session.
pub fn into_pieces(reader: impl AsyncRead + Send + 'static) -> impl Stream<Item = Piece> + Send + 'static {
    ReaderStream::with_capacity(reader, READ_BYTES).map_while(|piece| piece.ok().map(|data| Piece { data }))
}

pub fn from_pieces(pieces: Streaming<Piece>) -> impl AsyncRead + Send + Unpin + 'static {
    StreamReader::new(pieces.map(|piece| piece.map(|piece| piece.data).map_err(into_io)))
}

fn into_io(status: Status) -> io::Error {
    io::Error::other(status)
}
