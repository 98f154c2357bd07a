//! An appliance for tests: a control service with fixed answers, the real gateway, and a worker that sends back what it
//! gets.

use std::convert::Infallible;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use carrier::proto::control_server::{Control, ControlServer};
use carrier::proto::*;
use carrier::to_hex;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use remotegpu_client::connect::{Ca, Hello, SessionTicket, Share};
use remotegpu_worker::gateway::{self, KeyPair, Options};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, socketpair,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};
use tonic::{Request, Response, Status};

pub const SESSION: [u8; 16] = [0x51; 16];
pub const TICKET: [u8; 32] = [0x71; 32];
pub const LEASE: &str = "00112233445566778899aabbccddeeff";

pub struct Appliance {
    pub control_port: u16,
    pub data_port: u16,
    pub data_socket: PathBuf,
    control: OwnedFd,
    certificate: Option<Certificate>,
}

/// Files of an authority and of a certificate that it signed for `localhost`.
pub struct Certificate {
    _folder: Folder,
    pub ca: PathBuf,
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// Removed with the value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Certificate {
    pub fn new(label: &str) -> Certificate {
        let folder = std::env::temp_dir().join(format!("remotegpu-connect-{}-{label}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (ca, chain) = (write("ca.pem", ca_pem), write("cert.pem", leaf.pem()));
        let key = write("key.pem", key.serialize_pem());
        Certificate { _folder: Folder(folder), ca, chain, key }
    }

    fn acceptor(&self) -> TlsAcceptor {
        let chain = CertificateDer::pem_file_iter(&self.chain).unwrap().collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(&self.key).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.data_socket);
    }
}

impl Appliance {
    /// Runs until the test's process ends (the control service) or the value is dropped (the gateway).
    pub fn start(certificate: Option<Certificate>) -> Appliance {
        let (control, gateway_end) = packet_pair();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, SeqCst);
        let data_socket = std::env::temp_dir().join(format!("remotegpu-data-{}-{number}", std::process::id()));
        let own_socket = Some(data_socket.clone());
        let tls = certificate.as_ref().map(|c| KeyPair { certificate: c.chain.clone(), key: c.key.clone() });
        on_runtime(async move {
            let listen = String::from("127.0.0.1:0");
            // The control service is this file's own, with a port of its own: no test calls the gateway's.
            let (control_listen, control_socket) = (listen.clone(), "/nonexistent/control".into());
            let data_socket = own_socket;
            let options = Options { listen, data_socket, control_listen, control_socket, control_fd: -1, tls };
            gateway::run(options, gateway_end).await.unwrap();
        });
        let (listening, _) = receive(&control);
        let data_port = listening["port"].as_u64().unwrap() as u16;
        let control_port = serve_control(data_port, certificate.as_ref().map(Certificate::acceptor));
        Appliance { control_port, data_port, data_socket, control, certificate }
    }

    pub fn share(&self) -> Share {
        Share {
            endpoint: format!("127.0.0.1:{}", self.control_port),
            lease_id: LEASE.into(),
            lease_secret: to_hex(&TICKET),
            ca: self.certificate.as_ref().map(|c| Ca::File(c.ca.display().to_string())),
            server_name: self.certificate.as_ref().map(|_| "localhost".into()),
            asking: None,
            claim: None,
        }
    }

    pub fn certificate_chain(&self) -> Option<&Path> {
        self.certificate.as_ref().map(|c| c.chain.as_path())
    }

    pub fn hello(&self) -> Hello {
        let (driver_version, driver_release) = (13040, "580.65.06".to_owned());
        let (data_port, tls) = (self.data_port, self.certificate.is_some());
        Hello {
            driver_version,
            driver_release,
            data_port,
            tls,
            managed_mib: None,
            devices: Vec::new(),
            environments: Vec::new(),
        }
    }

    pub fn ticket(&self) -> SessionTicket {
        SessionTicket {
            session_id: SESSION,
            ticket: TICKET,
            data_port: self.data_port,
            data_socket: String::new(),
            grace: std::time::Duration::ZERO,
            wire: protocol::WIRE_VERSION,
        }
    }

    /// Lets one session in; its worker's end of the connection comes back from the returned function.
    pub fn expect_session(&self) -> impl FnOnce() -> std::fs::File {
        let (worker, gateway_end) = packet_pair();
        let order = serde_json::json!({"op": "session", "id": to_hex(&SESSION), "ticket": to_hex(&TICKET)}).to_string();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [gateway_end.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let parts = [std::io::IoSlice::new(order.as_bytes())];
        rustix::net::sendmsg(&self.control, &parts, &mut ancillary, SendFlags::empty()).unwrap();
        move || receive(&worker).1.expect("no connection came").into()
    }

    /// The session is at this endpoint from now on.
    pub fn move_session(&self, endpoint: &str, data_port: u16) {
        let to = serde_json::json!({"endpoint": endpoint, "data_port": data_port, "server_name": null}).to_string();
        let order = serde_json::json!({"op": "moved", "id": to_hex(&SESSION), "ticket": to_hex(&TICKET), "to": to});
        rustix::net::send(&self.control, order.to_string().as_bytes(), SendFlags::empty()).unwrap();
    }
}

fn packet_pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn receive(socket: &OwnedFd) -> (serde_json::Value, Option<OwnedFd>) {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    (serde_json::from_slice(&bytes[..received.bytes]).unwrap(), descriptor)
}

fn on_runtime(work: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work);
    });
}

/// A server that answers every connection with `reply`, having read a little; then it closes, or waits forever.
pub fn stranger(reply: &'static [u8], closes: bool) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Read::read(&mut stream, &mut [0; 1024]);
            let _ = stream.write_all(reply);
            if !closes {
                open.push(stream);
            }
        }
    });
    port
}

fn serve_control(data_port: u16, tls: Option<TlsAcceptor>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    on_runtime(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let service = ControlServer::new(FixedAnswers { data_port, tls: tls.is_some() });
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let tls = tls.clone();
            tokio::spawn(async move {
                // Clients that do not fit are what the tests are about.
                let _ = match tls {
                    None => server.serve_connection(TokioIo::new(tcp), service).await,
                    Some(acceptor) => match acceptor.accept(tcp).await {
                        Ok(stream) => server.serve_connection(TokioIo::new(stream), service).await,
                        Err(_) => Ok(()),
                    },
                };
                Ok::<(), Infallible>(())
            });
        }
    });
    port
}

struct FixedAnswers {
    data_port: u16,
    tls: bool,
}

fn check(lease_id: &str) -> Result<(), Status> {
    if lease_id == LEASE { Ok(()) } else { Err(Status::not_found("no such lease")) }
}

fn environment() -> Environment {
    Environment {
        name: "torch".into(),
        backend: "cpu".into(),
        python: "3.12.4".into(),
        packages: [("torch".into(), "2.15.0".into())].into(),
        devices: vec!["a CPU".into()],
    }
}

fn unused<T>() -> Result<T, Status> {
    Err(Status::unimplemented("not used in these tests"))
}

#[tonic::async_trait]
impl Control for FixedAnswers {
    type OpenLeaseStream = tokio_stream::Empty<Result<OpenLeaseReply, Status>>;
    type MoveLeaseStream = tokio_stream::Empty<Result<Progress, Status>>;
    type SuspendLeaseStream = tokio_stream::Empty<Result<Progress, Status>>;
    type ResumeLeaseStream = tokio_stream::Empty<Result<Progress, Status>>;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let request = request.into_inner();
        check(&request.lease_id)?;
        let refused = request.lease_secret == "another version";
        let refusal = if refused { "the appliance is remotegpu 9.9.9, the client remotegpu 0.1.0" } else { "" };
        Ok(Response::new(HelloReply {
            versions: request.versions,
            driver_version: 13040,
            driver_release: "580.65.06".into(),
            data_port: self.data_port.into(),
            devices: vec![Device {
                name: "Test GPU".into(),
                uuid: vec![0xab; 16],
                memory_bytes: 1 << 30,
                pci_domain: 1,
                pci_bus: 2,
                pci_device: 3,
                attributes: [(75, 8), (76, 0)].into(),
                gpu_uuid: "GPU-1".into(),
                peers: Vec::new(),
            }],
            refusal: refusal.into(),
            tls: self.tls,
            environments: vec![environment()],
            managed_mib: None,
        }))
    }

    async fn open_session(&self, request: Request<OpenSessionRequest>) -> Result<Response<OpenSessionReply>, Status> {
        let request = request.into_inner();
        check(&request.lease_id)?;
        let python = request.offload.as_ref().map(|_| (7, "python train.py".to_owned()));
        let expected = python.unwrap_or((std::process::id(), request.process_name.clone()));
        assert_eq!((request.pid, request.process_name), expected);
        Ok(Response::new(OpenSessionReply {
            session_id: to_hex(&SESSION),
            ticket: to_hex(&TICKET),
            data_port: self.data_port.into(),
            data_socket: String::new(),
            neighbours: Vec::new(),
            grace_seconds: 0,
            wire: protocol::WIRE_VERSION,
            suspended: String::new(),
            refusal: if request.lease_secret == "full" { "8 of 8 sessions".into() } else { String::new() },
            environment: request.offload.map(|wish| Environment { name: wish.environment, ..environment() }),
        }))
    }

    async fn device_state(&self, request: Request<DeviceStateRequest>) -> Result<Response<DeviceStateReply>, Status> {
        check(&request.into_inner().lease_id)?;
        let processes = vec![Process { pid: 42, name: "train".into(), memory_bytes: 7 }];
        let device =
            DeviceState { memory_used_bytes: 5, gpu_utilization_percent: Some(30), processes, ..Default::default() };
        Ok(Response::new(DeviceStateReply { devices: vec![device] }))
    }

    async fn open_lease(&self, _: Request<OpenLeaseRequest>) -> Result<Response<Self::OpenLeaseStream>, Status> {
        unused()
    }
    async fn suspend_lease(
        &self,
        _: Request<SuspendLeaseRequest>,
    ) -> Result<Response<Self::SuspendLeaseStream>, Status> {
        unused()
    }
    async fn resume_lease(&self, _: Request<ResumeLeaseRequest>) -> Result<Response<Self::ResumeLeaseStream>, Status> {
        unused()
    }
    async fn resize_lease(&self, _: Request<ResizeLeaseRequest>) -> Result<Response<ResizeLeaseReply>, Status> {
        unused()
    }
    async fn invite_lease(&self, _: Request<InviteLeaseRequest>) -> Result<Response<InviteLeaseReply>, Status> {
        unused()
    }
    async fn receive_lease(&self, _: Request<ReceiveLeaseRequest>) -> Result<Response<ReceiveLeaseReply>, Status> {
        unused()
    }
    async fn settle_lease(&self, _: Request<SettleLeaseRequest>) -> Result<Response<SettleLeaseReply>, Status> {
        unused()
    }
    async fn move_lease(&self, _: Request<MoveLeaseRequest>) -> Result<Response<Self::MoveLeaseStream>, Status> {
        unused()
    }
    async fn close_lease(&self, _: Request<CloseLeaseRequest>) -> Result<Response<CloseLeaseReply>, Status> {
        unused()
    }
    async fn close_session(&self, _: Request<CloseSessionRequest>) -> Result<Response<CloseSessionReply>, Status> {
        unused()
    }
    async fn inventory(&self, _: Request<InventoryRequest>) -> Result<Response<InventoryReply>, Status> {
        unused()
    }
    async fn health(&self, _: Request<HealthRequest>) -> Result<Response<HealthReply>, Status> {
        unused()
    }
    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<DrainReply>, Status> {
        unused()
    }
}
