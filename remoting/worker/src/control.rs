//! What the worker and the appliance say to each other: one JSON object per packet. Pure; `server` has the socket.

use crate::driver::Code;
use crate::session::{Session, Stats};
use driverapi::errors::*;
use protocol::{Granted, MemoryState};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    Ready,
    Grant { id: u64, device: u32, least: u64, want: u64 },
    Return { device: u32, size: u64 },
    Memory { id: u64, device: u32 },
    Stats { commands: u64, launches: u64, bytes_in: u64, bytes_out: u64 },
    Unhealthy { device: u32, code: Code, message: String },
    Log { line: String },
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Order {
    Granted { id: u64, size: u64 },
    Memory { id: u64, limit: u64, free: u64 },
    End { code: Code, reason: String },
}

/// Requests to be sent, and the commands that wait for their answers.
#[derive(Debug, Default)]
pub struct Requests {
    queue: VecDeque<Request>,
    next_id: u64,
    /// The command, and the device that the memory is granted on.
    grants: HashMap<u64, (u64, u32)>,
    queries: HashMap<u64, u64>,
    unhealthy_told: bool,
    last_stats: Stats,
}

impl Requests {
    /// Questions without answer that a client may have, at most.
    const MOST: usize = 1024;

    pub fn push(&mut self, request: Request) {
        self.queue.push_back(request);
    }

    pub fn first(&self) -> Option<&Request> {
        self.queue.front()
    }

    pub fn sent(&mut self) {
        self.queue.pop_front();
    }

    /// Asks for memory; `false` if too much was asked already.
    pub fn grant(&mut self, seq: u64, device: u32, least: u64, want: u64) -> bool {
        if self.grants.len() >= Self::MOST {
            return false;
        }
        self.next_id += 1;
        self.grants.insert(self.next_id, (seq, device));
        self.push(Request::Grant { id: self.next_id, device, least, want });
        true
    }

    pub fn memory(&mut self, seq: u64, device: u32) -> bool {
        if self.queries.len() >= Self::MOST {
            return false;
        }
        self.next_id += 1;
        self.queries.insert(self.next_id, seq);
        self.push(Request::Memory { id: self.next_id, device });
        true
    }

    /// Told once in a session.
    pub fn unhealthy(&mut self, devices: impl IntoIterator<Item = u32>, code: Code) {
        if std::mem::replace(&mut self.unhealthy_told, true) {
            return;
        }
        for device in devices {
            let message = format!("a session got CUDA error {code}");
            self.push(Request::Unhealthy { device, code, message });
        }
    }

    /// Queues the figures if they changed.
    pub fn stats(&mut self, stats: Stats, bytes_out: u64) {
        if stats != self.last_stats {
            self.last_stats = stats;
            let Stats { commands, launches, bytes_in } = stats;
            self.push(Request::Stats { commands, launches, bytes_in, bytes_out });
        }
    }

    pub fn stats_are_due(&self, stats: Stats) -> bool {
        stats != self.last_stats
    }
}

impl Session {
    /// Takes a packet of the appliance; what is none is ignored, as it can only come from a newer appliance.
    pub fn order(&mut self, packet: &[u8]) {
        let Ok(order) = serde_json::from_slice::<Order>(packet) else { return };
        match order {
            Order::Granted { id, size } => {
                let Some((seq, device)) = self.requests.grants.remove(&id) else { return };
                self.memory.granted(device, size);
                match size {
                    0 => self.reply(seq, CUDA_ERROR_OUT_OF_MEMORY),
                    _ => self.reply_with(seq, 0, &Granted { size }, &[]),
                }
            }
            Order::Memory { id, limit, free } => {
                let Some(seq) = self.requests.queries.remove(&id) else { return };
                self.reply_with(seq, 0, &MemoryState { limit, free }, &[]);
            }
            Order::End { code, reason } => self.end(code, &reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_those_of_the_interface() {
        let json = |request: Request| serde_json::to_string(&request).unwrap();
        assert_eq!(json(Request::Ready), r#"{"op":"ready"}"#);
        assert_eq!(
            json(Request::Grant { id: 1, device: 2, least: 3, want: 4 }),
            r#"{"op":"grant","id":1,"device":2,"least":3,"want":4}"#
        );
        let end = serde_json::from_str::<Order>(r#"{"op":"end","code":46,"reason":"drained"}"#).unwrap();
        assert_eq!(end, Order::End { code: 46, reason: "drained".into() });
    }

    #[test]
    fn stats_are_queued_when_they_change() {
        let mut requests = Requests::default();
        requests.stats(Stats::default(), 5);
        assert_eq!(requests.first(), None);
        requests.stats(Stats { commands: 1, ..Stats::default() }, 5);
        assert!(matches!(requests.first(), Some(Request::Stats { commands: 1, bytes_out: 5, .. })));
    }
}
