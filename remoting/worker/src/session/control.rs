//! Executes the orders of the appliance to the worker, one JSON object per packet. `server` has the socket, and
//! `requests` has the other direction. This module does no I/O.

use crate::packets::Order;
use crate::session::commands::Session;
use crate::session::requests::Asker;
use driverapi::errors::*;
use protocol::{Granted, MemoryState, Message, Notice};
use std::os::fd::OwnedFd;
use std::time::Duration;

impl Session {
    /// Carries out an order of the appliance. An unknown packet is ignored, because only a newer appliance can send it.
    pub fn order(&mut self, packet: &[u8], file: Option<OwnedFd>) {
        let Ok(order) = serde_json::from_slice::<Order>(packet) else { return };
        match order {
            Order::Granted { id, size, line, inherited } => {
                let Some((asker, device)) = self.requests.granted(id) else { return };
                if !line.is_empty() {
                    self.out.push(Notice::CODE, 0, &Notice { line }, &[]);
                }
                self.memory.granted(device, size.saturating_sub(inherited));
                match asker {
                    Asker::Context(seq, context) => self.context_charged(seq, &context, size),
                    Asker::Stack(described) => self.stack_charged(&described, device, size),
                    Asker::Client(seq) if size == 0 => self.reply(seq, CUDA_ERROR_OUT_OF_MEMORY),
                    Asker::Client(seq) => self.reply_with(seq, 0, &Granted { size }, &[]),
                }
                // A command that waited for the answer may now be finished.
                self.advance();
            }
            Order::HandOn { device, least } => self.hand_on(device, least),
            Order::HandedOn { taken } => self.handed_on(taken),
            Order::Inherit { device, size, zeroed } => self.inherit(device, size, zeroed, file),
            Order::Settle { id } => self.settling.push((id, None)),
            Order::Memory { id, limit, free } => {
                let Some(seq) = self.requests.answered(id) else { return };
                self.reply_with(seq, 0, &MemoryState { limit, free }, &[]);
            }
            Order::Exported { id, token } => self.exported(id, token),
            Order::Released { token, last } => self.released(token, last),
            Order::Imported { id, device, size } => self.imported(id, device, size, file),
            Order::Code { id } => self.shared_code(id, file),
            Order::Suspend { reason, seconds } => self.suspend(file, reason, Duration::from_secs(seconds)),
            Order::Resume => self.resume(),
            Order::Ahead => self.send_ahead(file),
            Order::Move { seconds } => self.move_away(Duration::from_secs(seconds)),
            Order::Stay => self.refused_there(),
            Order::Leave => self.leave(),
            Order::ClientEnded => self.client_ended = true,
            Order::GiveWay => self.memory.gives_way = true,
            Order::End { code, reason } => {
                if !std::mem::take(&mut self.memory.gives_way) {
                    self.offer_no_more();
                }
                self.end(code, &reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::{Request, Token};

    #[test]
    fn packets_are_those_of_the_interface() {
        let json = |request: Request| serde_json::to_string(&request).unwrap();
        assert_eq!(json(Request::Ready), r#"{"op":"ready"}"#);
        assert_eq!(
            json(Request::Grant { id: 1, device: 2, least: 3, want: 4, maps: true }),
            r#"{"op":"grant","id":1,"device":2,"least":3,"want":4,"maps":true}"#
        );
        let token = Token([0xab; 16]);
        assert_eq!(json(Request::Release { token }), r#"{"op":"release","token":"abababababababababababababababab"}"#);
        let exported = r#"{"op":"exported","id":3,"token":"abababababababababababababababab"}"#;
        assert_eq!(serde_json::from_str::<Order>(exported).unwrap(), Order::Exported { id: 3, token: Some(token) });
        let refused = serde_json::from_str::<Order>(r#"{"op":"exported","id":3,"token":null}"#).unwrap();
        assert_eq!(refused, Order::Exported { id: 3, token: None });
        let end = serde_json::from_str::<Order>(r#"{"op":"end","code":46,"reason":"drained"}"#).unwrap();
        assert_eq!(end, Order::End { code: 46, reason: "drained".into() });
    }
}
