//! TLS 1.3 with the appliance's certificate. The certificate's files are read again when they change.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ALL_VERSIONS, ServerConfig, SupportedProtocolVersion, crypto, version};

use crate::guard::defences::{Defence, stands};

use super::options::KeyPair;

const VERSIONS: &[&SupportedProtocolVersion] = &[&version::TLS13];

/// File metadata that change when the files change.
type Stamp = [(u64, i64, i64, u64); 2];

pub struct Certificate {
    pair: KeyPair,
    current: Mutex<(Option<Stamp>, TlsAcceptor)>,
}

impl Certificate {
    /// Reads the certificate and its key.
    ///
    /// # Errors
    /// The message names the file that is wrong.
    pub fn load(pair: KeyPair) -> io::Result<Self> {
        let current = (stamp(&pair).ok(), acceptor(&pair)?);
        Ok(Certificate { pair, current: Mutex::new(current) })
    }

    /// Returns the acceptor for the next handshake. If the files cannot be used, for example while they are being
    /// replaced, the old certificate stays in use.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(now) = stamp(&self.pair)
            && current.0 != Some(now)
        {
            match acceptor(&self.pair) {
                Ok(new) => *current = (Some(now), new),
                Err(error) => eprintln!("remotegpu-gateway: the old certificate stays: {error}"),
            }
        }
        current.1.clone()
    }
}

fn stamp(pair: &KeyPair) -> io::Result<Stamp> {
    let of = |file: &Path| file.metadata().map(|of| (of.ino(), of.mtime(), of.mtime_nsec(), of.size()));
    Ok([of(&pair.certificate)?, of(&pair.key)?])
}

fn acceptor(pair: &KeyPair) -> io::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(&pair.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(&pair.certificate, error))?;
    let key = PrivateKeyDer::from_pem_file(&pair.key).map_err(|error| unusable(&pair.key, error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_protocol_versions(if stands(Defence::TlsVersion) { VERSIONS } else { ALL_VERSIONS })
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
