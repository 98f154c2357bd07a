//! TLS 1.3 with the appliance's certificate.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto, version};

use super::options::KeyPair;

/// # Errors
/// With the file at fault named.
pub fn acceptor(pair: &KeyPair) -> io::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(&pair.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(&pair.certificate, error))?;
    let key = PrivateKeyDer::from_pem_file(&pair.key).map_err(|error| unusable(&pair.key, error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| unusable(&pair.certificate, error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"remotegpu/1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn unusable(file: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("cannot use {}: {error}", file.display()))
}
