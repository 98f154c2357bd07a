//! What the worker asks of the appliance and tells it. `control` takes the answers.

use crate::driver::Code;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    pub commands: u64,
    pub launches: u64,
    pub bytes_in: u64,
}

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

    /// The command that waits for this grant, and the device.
    pub fn granted(&mut self, id: u64) -> Option<(u64, u32)> {
        self.grants.remove(&id)
    }

    /// The command that waits for this answer.
    pub fn answered(&mut self, id: u64) -> Option<u64> {
        self.queries.remove(&id)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_queued_when_they_change() {
        let mut requests = Requests::default();
        requests.stats(Stats::default(), 5);
        assert_eq!(requests.first(), None);
        requests.stats(Stats { commands: 1, ..Stats::default() }, 5);
        assert!(matches!(requests.first(), Some(Request::Stats { commands: 1, bytes_out: 5, .. })));
    }
}
