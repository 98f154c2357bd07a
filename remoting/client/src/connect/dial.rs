//! TCP connections to an appliance, with TLS if the share has an authority.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use driverapi::descriptors::apart;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};

use super::address;
use super::error::{ConnectError, ErrorKind, with_causes};
use super::handed::Asking;
use super::limits::POLICY_DELAY;
use super::share::{Claim, Place, Share};
use super::thread;
use super::tls::{self, Trust};
use crate::program::descriptors::Listed;

/// The pause between two attempts while a pod's network refuses connections.
const POLICY_PAUSE: Duration = Duration::from_millis(50);

/// The address to connect to, and the expected identity of the peer.
#[derive(Debug, Clone)]
pub struct Target {
    host: String,
    port: u16,
    trust: Option<Trust>,
    claim: Option<Claim>,
    /// Set in an acceptor of offload, which requests its connections from the gateway.
    asking: Option<Asking>,
    /// The lease and the appliance that the connection is for.
    pub place: Place,
}

impl Target {
    /// Returns the target for the share's appliance. `port` replaces the control port.
    ///
    /// # Errors
    /// `Settings` if the endpoint is not HOST:PORT.
    pub fn new(share: &Share, port: Option<u16>) -> Result<Self, ConnectError> {
        let (host, control) = share.address().ok_or_else(|| {
            ConnectError::new(
                ErrorKind::Settings,
                format!("`{}` is not HOST:PORT; correct the endpoint", share.endpoint),
            )
        })?;
        let trust = share.ca.as_ref().map(|ca| {
            let name = share.server_name.clone().unwrap_or_else(|| host.to_owned());
            Trust { ca: ca.clone(), name }
        });
        let (port, claim) = (port.unwrap_or(control), share.claim.clone());
        let (asking, place) = (share.asking.clone(), share.place());
        Ok(Target { host: host.to_owned(), port, trust, claim, asking, place })
    }

    /// Returns the error text, with the next step for the user, for a refused lease.
    pub fn lease_ended(&self) -> String {
        match &self.claim {
            Some(claim) => format!("the claim has ended or is not this pod's; {}", claim.describe()),
            None => "the lease has ended or is not this one's; start the program again with `remotegpu run`".into(),
        }
    }

    /// Returns the time limit of an exchange that should take `limit`. In a pod it is longer, because the network may
    /// refuse the first connections.
    pub fn limit(&self, limit: Duration) -> Duration {
        if self.claim.is_some() { limit + POLICY_DELAY } else { limit }
    }

    pub fn speaks_tls(&self) -> bool {
        self.trust.is_some()
    }

    /// Returns `HOST:PORT` for messages.
    pub fn peer(&self) -> String {
        address::joined(&self.host, self.port)
    }

    pub fn too_slow(&self, limit: Duration) -> ConnectError {
        let seconds = limit.as_secs_f32();
        let message = format!(
            "no answer from {} within {seconds} s; check that the appliance runs and that no firewall is in between",
            self.peer()
        );
        ConnectError::new(ErrorKind::Timeout, message)
    }

    /// Opens a TCP connection, with the options that all connections of this library have.
    pub async fn tcp(&self) -> Result<TcpStream, ConnectError> {
        let begun = Instant::now();
        loop {
            match dialled(&self.host, self.port).await {
                Ok(tcp) => {
                    carrier::configure(&tcp).map_err(|error| self.unreachable(&error.into()))?;
                    return Ok(tcp);
                }
                // Network policies take effect for a new pod a moment after the pod's program has started.
                Err(_) if self.claim.is_some() && begun.elapsed() < POLICY_DELAY => sleep(POLICY_PAUSE).await,
                Err(error) => return Err(self.unreachable(&error)),
            }
        }
    }

    /// Returns whether the gateway hands over the connections. They do not use TLS.
    pub fn is_handed(&self) -> bool {
        self.asking.is_some()
    }

    /// Opens a blocking socket that carries frames without TLS.
    pub async fn bare(&self) -> Result<OwnedFd, ConnectError> {
        match &self.asking {
            Some(asking) => Ok(handed(asking)?.into()),
            None => into_blocking(self.tcp().await?).map_err(thread::no_thread),
        }
    }

    /// Opens a connection, with TLS if the share has an authority. `protocol` is the protocol inside TLS (ALPN).
    pub async fn connect(&self, protocol: &'static [u8]) -> Result<Connection, ConnectError> {
        if let Some(asking) = &self.asking {
            let stream = handed(asking)?;
            let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
            return stream.map(Connection::local).map_err(thread::no_thread);
        }
        let tcp = self.tcp().await?;
        let listed = Listed::new(tcp.as_raw_fd());
        let followed = Followed::new(&tcp).map_err(thread::no_thread)?;
        let stream: Box<dyn Stream> = match &self.trust {
            Some(trust) => Box::new(trust.connect(tcp, &self.peer(), protocol).await?),
            None => Box::new(tcp),
        };
        Ok(Connection { _listed: listed, _followed: Some(followed), answer: Answer::default(), stream })
    }

    /// Opens a gRPC channel over one connection. If the peer is not a gRPC server, the first bytes of its answer show
    /// what it is.
    pub async fn channel(&self) -> Result<(Channel, Answer), ConnectError> {
        let connection = self.connect(b"h2").await?;
        let answer = connection.answer.clone();
        let scheme = if self.speaks_tls() { "https" } else { "http" };
        let origin = format!("{scheme}://{}", self.peer());
        let origin = origin.parse().map_err(|error| {
            ConnectError::new(
                ErrorKind::Settings,
                format!("{} cannot be a host name: {error}; correct it", self.peer()),
            )
        })?;
        let mut once = Some(hyper_util::rt::TokioIo::new(connection));
        let connector = Once(move || once.take().ok_or_else(|| io::Error::other("the connection ended")));
        let made = Endpoint::from_static("http://appliance")
            .origin(origin)
            .initial_stream_window_size(carrier::HTTP2_WINDOW)
            .initial_connection_window_size(2 * carrier::HTTP2_WINDOW)
            .max_frame_size(carrier::HTTP2_FRAME)
            .connect_with_connector(connector)
            .await;
        match made {
            Ok(channel) => Ok((channel, answer)),
            Err(error) => Err(self.no_grpc(&answer, &with_causes(&error)).await),
        }
    }

    fn unreachable(&self, error: &io::Error) -> ConnectError {
        let peer = self.peer();
        let message = match (error.kind(), &self.claim) {
            // The operator wrote this address, and writes another one when the appliance has moved.
            (_, Some(claim)) => {
                format!(
                    "no way to this pod's appliance {peer}: {error}; {}, and start the program again",
                    claim.describe()
                )
            }
            (io::ErrorKind::ConnectionRefused, None) => {
                format!("nothing listens at {peer}; start `remotegpu appliance` there, or correct the address")
            }
            (io::ErrorKind::TimedOut, None) => {
                format!("no answer from {peer}; check the address and that no firewall is in between")
            }
            // Errors of name resolution have no OS error number.
            _ if error.raw_os_error().is_none() => {
                format!("the host name of {peer} is not known ({error}); correct the address")
            }
            _ => format!("no way to {peer}: {error}; check the address and the network"),
        };
        ConnectError::new(ErrorKind::Unreachable, message)
    }

    /// Returns the error for a peer that is not a gRPC server, with a guess what the peer is.
    pub async fn no_grpc(&self, answer: &Answer, detail: &str) -> ConnectError {
        let peer = self.peer();
        let first = answer.first_bytes();
        if self.trust.is_none() && self.asking.is_none() && self.demands_tls(&first).await {
            return ConnectError::new(ErrorKind::Tls, format!("{peer} demands TLS; give the appliance's CA file"));
        }
        let seen = if first.is_empty() { "it closes the connection" } else { "it speaks another protocol" };
        let message = format!("{peer} is not a remotegpu appliance: {seen}; correct the address [{detail}]");
        ConnectError::new(ErrorKind::NotAnAppliance, message)
    }

    /// Returns whether the peer requires TLS. Its TLS alert may have been lost with the connection. Then a TLS
    /// handshake on a new connection decides.
    async fn demands_tls(&self, first: &[u8]) -> bool {
        match first {
            [0x15, 3, ..] => true,
            [] => match self.tcp().await {
                Ok(tcp) => tls::is_spoken(tcp).await,
                Err(_) => false,
            },
            _ => false,
        }
    }
}

/// Connects to the first of the host's addresses that accepts a connection.
async fn dialled(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "it has no address");
    for address in lookup_host((host, port)).await? {
        let socket = apart(|| if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() })?;
        match socket.connect(address).await {
            Ok(tcp) => return Ok(tcp),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn handed(asking: &Asking) -> Result<std::os::unix::net::UnixStream, ConnectError> {
    asking.connection().map_err(|error| {
        let message = format!(
            "the appliance gives this acceptor no connection to its GPU: {error}; close the session and open another, \
             and see the appliance's log"
        );
        ConnectError::new(ErrorKind::Unreachable, message)
    })
}

/// Converts an asynchronous stream to a blocking socket.
///
/// # Errors
/// Those of fcntl.
pub fn into_blocking(tcp: TcpStream) -> io::Result<OwnedFd> {
    let tcp = tcp.into_std()?;
    tcp.set_nonblocking(false)?;
    Ok(tcp.into())
}

/// A connector that gives tonic one existing connection. Connecting outside of tonic keeps the cause of a failure.
struct Once<F>(F);

impl<F, T> tower_service::Service<tonic::transport::Uri> for Once<F>
where
    F: FnMut() -> io::Result<T>,
{
    type Response = T;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<T>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::transport::Uri) -> Self::Future {
        std::future::ready((self.0)())
    }
}

/// A task that watches a connection whose peer may not read. It ends when this object is dropped.
struct Followed(JoinHandle<()>);

impl Followed {
    fn new(tcp: &TcpStream) -> io::Result<Self> {
        let socket = tcp.as_fd().try_clone_to_owned()?;
        Ok(Followed(tokio::spawn(async move {
            let _listed = Listed::new(socket.as_raw_fd());
            carrier::followed(socket, std::future::pending()).await
        })))
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.0.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The first bytes that the peer has sent.
#[derive(Debug, Clone, Default)]
pub struct Answer(Arc<Mutex<Vec<u8>>>);

impl Answer {
    const KEEP: usize = 8;

    fn first_bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = Self::KEEP - kept.len().min(Self::KEEP);
        kept.extend(bytes.iter().take(room));
    }
}

/// A stream that is on the list of open descriptors.
pub struct Connection {
    // This field is dropped first, so that the descriptor leaves the list before it is closed.
    _listed: Listed,
    _followed: Option<Followed>,
    answer: Answer,
    stream: Box<dyn Stream>,
}

impl Connection {
    pub fn local(stream: UnixStream) -> Self {
        let (listed, answer) = (Listed::new(stream.as_raw_fd()), Answer::default());
        Connection { _listed: listed, _followed: None, answer, stream: Box::new(stream) }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.answer.record(&buf.filled()[before..]);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;
    use tokio::time::timeout;

    use super::*;

    /// Returns a bound port that does not listen yet, and its number.
    fn silent() -> (TcpSocket, u16) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    }

    fn target(port: u16, in_a_pod: bool) -> Target {
        let claim = Claim { namespace: "team".into(), name: "train".into(), token: "/nowhere/token".into() };
        let share = Share {
            endpoint: format!("127.0.0.1:{port}"),
            lease_id: String::new(),
            lease_secret: String::new(),
            ca: None,
            server_name: None,
            asking: None,
            claim: in_a_pod.then_some(claim),
        };
        Target::new(&share, None).unwrap()
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_pods_program_tries_again_until_it_is_let_in() {
        block_on(async {
            let (socket, port) = silent();
            let late = tokio::spawn(async move {
                sleep(3 * POLICY_PAUSE).await;
                socket.listen(1).unwrap()
            });
            let tcp = target(port, true).tcp().await.unwrap();
            let (_, from) = late.await.unwrap().accept().await.unwrap();
            assert_eq!(from, tcp.local_addr().unwrap());
        });
    }

    #[test]
    fn a_pods_program_gives_up_after_the_delay_and_names_its_claim() {
        block_on(async {
            let (_socket, port) = silent();
            let begun = Instant::now();
            let error = target(port, true).tcp().await.unwrap_err();
            assert!(begun.elapsed() >= POLICY_DELAY);
            assert_eq!(error.kind, ErrorKind::Unreachable);
            assert!(error.message.contains("kubectl describe gpuclaim train -n team"), "{error}");
        });
    }

    #[test]
    fn outside_of_a_pod_nobody_waits() {
        block_on(async {
            let (_socket, port) = silent();
            let target = target(port, false);
            let error = timeout(POLICY_DELAY / 2, target.tcp()).await.unwrap().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unreachable);
            assert!(error.message.contains("nothing listens"), "{error}");
        });
    }

    #[test]
    fn only_a_pod_is_given_the_delay_beside_a_limit() {
        let limit = Duration::from_secs(1);
        assert_eq!(target(1, true).limit(limit), limit + POLICY_DELAY);
        assert_eq!(target(1, false).limit(limit), limit);
    }
}
