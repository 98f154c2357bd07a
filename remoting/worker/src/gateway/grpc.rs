//! The gRPC carrier. HTTP/2 ends in the gateway, and the session's bytes continue through a socket pair.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use carrier::proto::Piece;
use carrier::proto::data_server::{Data, DataServer};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use protocol::PrefaceKind;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::admission::{admit, read_preface};
use super::state::Gateway;
use super::strangers::limits::PATIENCE;
use super::strangers::probation::Probation;

/// Limit on the sessions over one HTTP/2 connection. Each client process opens its own connection.
const MAX_STREAMS: u32 = 64;
/// Limit in bytes on a request's headers. Uncompressed, they may be many times larger than in their compressed form.
const MAX_HEADERS: u32 = 8 << 10;

/// Serves one HTTP/2 connection until it ends. It sends no HTTP/2 pings, because they would end the session of a client
/// that is only stopped. The kernel's keepalive detects dead peers.
///
/// # Errors
/// The reason why the connection was closed.
pub async fn serve<S>(gateway: &Arc<Gateway>, stream: S, probation: Arc<Probation>) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let live = Arc::<Live>::default();
    let sessions = DataServer::new(Sessions { gateway: gateway.clone(), probation, live: live.clone() });
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADERS)
            .initial_stream_window_size(carrier::HTTP2_WINDOW)
            .initial_connection_window_size(2 * carrier::HTTP2_WINDOW)
            .max_frame_size(carrier::HTTP2_FRAME)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(sessions))
    );
    let served = tokio::select! {
        served = &mut connection => served,
        // A connection that was authenticated but carries no session now must not keep a place from others.
        () = live.idle() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    served.map_err(|error| format!("broken HTTP/2: {error}"))
}

/// The number of a connection's streams that carry a session.
#[derive(Default)]
struct Live {
    count: AtomicUsize,
    changed: Notify,
}

impl Live {
    /// Returns after the connection has carried no session for the time limit of a preface.
    async fn idle(&self) {
        loop {
            // The future is created before the check, so that it notices a change between the check and the wait.
            let changed = self.changed.notified();
            if self.count.load(Ordering::SeqCst) > 0 {
                changed.await;
            } else if tokio::time::timeout(PATIENCE, changed).await.is_err() {
                return;
            }
        }
    }
}

/// A guard that counts one stream until it is dropped.
struct Counted(Arc<Live>);

impl Counted {
    fn new(live: &Arc<Live>) -> Self {
        live.count.fetch_add(1, Ordering::SeqCst);
        live.changed.notify_waiters();
        Counted(live.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

struct Sessions {
    gateway: Arc<Gateway>,
    probation: Arc<Probation>,
    live: Arc<Live>,
}

#[tonic::async_trait]
impl Data for Sessions {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<Piece, Status>> + Send>>;

    async fn session(&self, request: Request<Streaming<Piece>>) -> Result<Response<Self::SessionStream>, Status> {
        let mut upward = carrier::from_pieces(request.into_inner());
        let preface = match tokio::time::timeout(PATIENCE, read_preface(&mut upward)).await {
            Ok(Ok(preface)) => preface,
            Ok(Err(reason)) => return Err(Status::invalid_argument(reason.to_string())),
            Err(_) => return Err(Status::deadline_exceeded("showed no preface in time")),
        };
        let counted = Counted::new(&self.live);
        let (ours, local) = UnixStream::pair()?;
        let (downward, to_worker) = ours.into_split();
        // The pair is closed only after both ends' bytes are in it. Then the caller of a refused connection receives a
        // status and not only the end of the stream.
        let (verdict, decided) = tokio::sync::oneshot::channel();
        let (gateway, probation) = (self.gateway.clone(), self.probation.clone());
        let resumes = matches!(preface.kind, PrefaceKind::Resume { .. });
        tokio::spawn(async move {
            let admitted = admit(&gateway, &preface, local, &probation).await;
            if let Err(reason) = &admitted {
                gateway.events.refused("gRPC", reason);
            }
            let _ = verdict.send(admitted);
        });
        let mut downward = Box::pin(carrier::into_pieces(downward));
        let Some(first) = downward.next().await else {
            let reason = match decided.await {
                Ok(Err(reason)) => reason.to_string(),
                _ => "the session ended at once".to_owned(),
            };
            return Err(Status::unauthenticated(reason));
        };
        // The worker has accepted the connection, or has reported that it refuses.
        if resumes && first.data.first() == Some(&carrier::ACCEPTED) {
            self.probation.pass();
        }
        tokio::spawn(carrier::copy(upward, to_worker));
        let pieces = tokio_stream::once(first).chain(downward).map(move |piece| {
            // The verdict holds the connection's place in the session.
            let _kept = (&counted, &decided);
            Ok(piece)
        });
        Ok(Response::new(Box::pin(pieces)))
    }
}
