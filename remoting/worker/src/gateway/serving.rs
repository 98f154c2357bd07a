//! Starts a gateway: opens its ports and starts the tasks that serve them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use super::acceptors;
use super::control;
use super::control_port::connections::Connections;
use super::events;
use super::listen::{self, Port};
use super::options::Options;
use super::state::Gateway;
use super::strangers::limits::{CALLERS, PATIENCE, STRANGERS, TENANTS};
use super::strangers::probation::Door;
use super::tls::Certificate;
use crate::packets::GatewayEvent;

/// Runs the gateway until the appliance closes the control socket.
///
/// # Errors
/// Fails if the certificate cannot be read, or if an address is not available.
pub async fn run(options: Options, control: OwnedFd) -> io::Result<()> {
    let tls = options.tls.map(Certificate::load).transpose()?;
    let data = listen::bind(&options.listen).await?;
    let control_port = listen::bind(&options.control_listen).await?;
    let (events, outgoing) = events::channel();
    let ports = GatewayEvent::Listening { port: data.local_addr()?.port(), control: control_port.local_addr()?.port() };
    events.send(ports).await;
    let gateway = Arc::new(Gateway {
        registry: Mutex::default(),
        ordered: Notify::new(),
        events,
        tls,
        connections: Connections::new(options.control_socket)?,
        acceptors: Door::new(PATIENCE, acceptors::ANY, acceptors::ANY),
        turns: OnceLock::new(),
    });
    let data_door = Door::new(PATIENCE, STRANGERS, TENANTS);
    let control_door = Door::new(PATIENCE, STRANGERS, CALLERS);
    if let Some(path) = options.data_socket {
        tokio::spawn(listen::accept_local(gateway.clone(), path, data_door.clone()));
    }
    tokio::spawn(listen::accept_for_ever(gateway.clone(), data, Port::Data, data_door));
    tokio::spawn(listen::accept_for_ever(gateway.clone(), control_port, Port::Control, control_door));
    control::serve(&gateway, control, outgoing).await
}
