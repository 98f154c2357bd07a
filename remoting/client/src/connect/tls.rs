//! TLS 1.3 to an appliance whose authority is known.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error as TlsError, RootCertStore, crypto, version};

use super::error::{ConnectError, ErrorKind};

/// How the appliance proves who it is.
#[derive(Debug, Clone)]
pub struct Trust {
    /// PEM file.
    pub ca: String,
    /// The name that the certificate must bear.
    pub name: String,
}

impl Trust {
    /// `protocol` is what is spoken inside (ALPN).
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
        connector.connect(name, tcp).await.map_err(|error| tls_error(self.explain(peer, &error)))
    }

    fn config(&self, protocol: &'static [u8]) -> Result<ClientConfig, ConnectError> {
        let unusable = |why: &dyn std::fmt::Display| {
            tls_error(format!("the CA file {} cannot be used: {why}; it must hold certificates in PEM form", self.ca))
        };
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(&self.ca).map_err(|error| unusable(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unusable(&error))?;
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
        if roots.is_empty() {
            return Err(unusable(&"it holds none"));
        }
        config_with(roots, protocol).map_err(|error| unusable(&error))
    }

    fn explain(&self, peer: &str, error: &io::Error) -> String {
        let Trust { ca, name } = self;
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
        match cause {
            Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
                format!(
                    "the certificate of {peer} is not signed by an authority in {ca}; use the appliance's own CA file"
                )
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
                "{peer} does not speak TLS, but the CA file {ca} is given; leave it out, or give the appliance a certificate"
            ),
            Some(why) => format!("{peer} and this client agree on no TLS: {why}; is it a remotegpu appliance?"),
            None => format!(
                "{peer} ended the connection during the TLS handshake ({error}); is it a remotegpu appliance with a certificate?"
            ),
        }
    }
}

fn config_with(roots: RootCertStore, protocol: &'static [u8]) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// Does the peer speak TLS? It is asked without an authority to trust: a peer that does is turned down, which is the sign.
pub async fn is_spoken(tcp: TcpStream) -> bool {
    let Ok(config) = config_with(RootCertStore::empty(), b"h2") else { return false };
    let nobody = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let Err(error) = TlsConnector::from(Arc::new(config)).connect(nobody, tcp).await else { return true };
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    matches!(cause, Some(TlsError::InvalidCertificate(_) | TlsError::AlertReceived(_) | TlsError::PeerIncompatible(_)))
}

fn tls_error(message: String) -> ConnectError {
    ConnectError::new(ErrorKind::Tls, message)
}
