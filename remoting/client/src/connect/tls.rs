//! TLS 1.3 connections to an appliance whose authority is known.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme, crypto,
    version,
};

use super::error::{ConnectError, ErrorKind};
use super::share::Ca;

/// The data for verifying the appliance's certificate.
#[derive(Debug, Clone)]
pub struct Trust {
    pub ca: Ca,
    /// The name that the certificate must have.
    pub name: String,
}

impl Trust {
    /// Connects with TLS. `protocol` is the protocol inside (ALPN).
    pub async fn connect(
        &self,
        tcp: TcpStream,
        peer: &str,
        protocol: &'static [u8],
    ) -> Result<TlsStream<TcpStream>, ConnectError> {
        let name = ServerName::try_from(self.name.clone()).map_err(|_| {
            tls_error(format!("`{}` cannot be the name in a certificate; correct server_name", self.name))
        })?;
        let connector = TlsConnector::from(Arc::new(self.config(protocol)?));
        connector.connect(name, tcp).await.map_err(|error| self.explain(peer, &error))
    }

    fn config(&self, protocol: &'static [u8]) -> Result<ClientConfig, ConnectError> {
        let unusable = |why: &dyn std::fmt::Display| {
            tls_error(format!("{} cannot be used: {why}; it must hold certificates in PEM form", self.ca))
        };
        let own = match &self.ca {
            Ca::File(path) => CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>),
            Ca::Pem(text) => CertificateDer::pem_slice_iter(text.as_bytes()).collect(),
        };
        let own = own.map_err(|error| unusable(&error))?;
        if own.is_empty() {
            return Err(unusable(&"it holds none"));
        }
        let mut roots = RootCertStore::empty();
        for certificate in &own {
            roots.add(certificate.clone()).map_err(|error| unusable(&error))?;
        }
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| unusable(&error))?;
        config_with(Arc::new(Authorities { own, chains }), protocol).map_err(|error| unusable(&error))
    }

    fn explain(&self, peer: &str, error: &io::Error) -> ConnectError {
        let Trust { ca, name } = self;
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
        tls_error(match cause {
            Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
                format!("the certificate of {peer} is not signed by {ca}; use the appliance's own authority")
            }
            Some(TlsError::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })) => {
                let presented = presented.join(", ");
                format!(
                    "the certificate of {peer} is for {presented}, not for {name}; set server_name to one of its names"
                )
            }
            Some(TlsError::InvalidCertificate(
                why @ (CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }),
            )) => format!("the certificate of {peer} is not valid now: {why}; renew it, or set this machine's clock"),
            Some(TlsError::InvalidCertificate(why)) => {
                format!("the certificate of {peer}, checked against {ca}, is not accepted: {why}; renew it")
            }
            Some(TlsError::InvalidMessage(_)) => format!(
                "{peer} does not speak TLS, but {ca} is given; leave it out, or give the appliance a certificate"
            ),
            Some(why) => format!("{peer} and this client agree on no TLS: {why}; is it a remotegpu appliance?"),
            None => {
                let message = format!(
                    "{peer} ended the connection during the TLS handshake ({error}); is it a remotegpu appliance with a certificate?"
                );
                return ConnectError::new(ErrorKind::Unreachable, message);
            }
        })
    }
}

/// Accepts certificates that webpki accepts, and the certificates of the CA file themselves. `openssl req -x509`
/// creates a certificate that is its own authority. webpki rejects such a server certificate, although the user trusts
/// it.
#[derive(Debug)]
struct Authorities {
    own: Vec<CertificateDer<'static>>,
    chains: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Authorities {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        if self.own.iter().any(|certificate| certificate == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        self.chains.verify_server_cert(end_entity, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

fn provider() -> Arc<crypto::CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}

fn config_with(verifier: Arc<dyn ServerCertVerifier>, protocol: &'static [u8]) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// Returns whether the peer uses TLS: whether a handshake completes. Accepts any certificate and sends no data.
pub async fn is_spoken(tcp: TcpStream) -> bool {
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&version::TLS13]);
    let Ok(config) = config else { return false };
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let nobody = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let Err(error) = TlsConnector::from(Arc::new(config)).connect(nobody, tcp).await else { return true };
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    matches!(cause, Some(TlsError::InvalidCertificate(_) | TlsError::AlertReceived(_) | TlsError::PeerIncompatible(_)))
}

fn tls_error(message: String) -> ConnectError {
    ConnectError::new(ErrorKind::Tls, message)
}
