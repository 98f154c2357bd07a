//! Serves one accepted connection of the data port, from its first bytes until it is handed over.

use std::sync::Arc;

use tokio::net::{TcpStream, UnixStream};

use super::admission::preface_follows;
use super::grpc;
use super::opening::{Carrier, First, Refused, Stream, first};
use super::rewind::Rewind;
use super::state::Gateway;
use super::strangers::limits::RATION;
use super::strangers::probation::Probation;
use super::strangers::ration::Rationed;

/// Serves a connection of the data port until a worker has it. A connection that holds a lease is served until it ends.
pub async fn serve(gateway: &Arc<Gateway>, tcp: TcpStream, probation: Arc<Probation>) -> Result<(), Refused> {
    let Some(First { head, carrier, stream, socket }) = first(gateway, tcp, RATION, &probation).await? else {
        return Ok(());
    };
    match (carrier, stream) {
        (Carrier::Frames, Stream::Plain(tcp)) => preface_follows(gateway, head, tcp, &probation).await.map(drop),
        (Carrier::Frames, Stream::Tls(tls)) => {
            let (near, local) = UnixStream::pair()?;
            // The task ends with either side; then nothing is left to send.
            let carried = tokio::spawn(carrier::followed(socket, carrier::pump(tls, near)));
            let place = preface_follows(gateway, head, local, &probation).await?;
            tokio::spawn(async move {
                let _ = carried.await;
                drop(place);
            });
            Ok(())
        }
        (Carrier::Http2, Stream::Plain(tcp)) => {
            let tcp = Rewind::new(head, Rationed::new(tcp, RATION, &probation));
            Ok(carrier::followed(socket, grpc::serve(gateway, tcp, probation)).await?)
        }
        (Carrier::Http2, Stream::Tls(tls)) => {
            Ok(carrier::followed(socket, grpc::serve(gateway, Rewind::new(head, tls), probation)).await?)
        }
    }
}
