//! The limits of one session, besides the memory of its share. The appliance sets them.

use std::collections::BTreeSet;

/// Limits on the number of the client's objects, in all contexts together, and on bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    pub contexts: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    /// The number of executable graphs.
    pub graphs: u64,
    /// The number of nodes of one executable graph, including those of its bodies.
    pub graph_nodes: u64,
    /// The bytes of images in host memory.
    pub image_bytes: u64,
    /// The bytes of the largest image that the appliance keeps for other sessions. 0 if it keeps none.
    pub shared_code_bytes: u64,
    /// The bytes of page-locked memory that copies pass through.
    pub pinned_bytes: u64,
    /// The bytes of the client's page-locked memory that the client shares with the worker.
    pub client_bytes: u64,
    /// The bytes of state for mirrors, which replace memory of the client that its kernels use in place.
    pub mirror_bytes: u64,
    /// The bytes that the driver takes for a context. The appliance reserves them for the first context of a device.
    /// Further contexts are charged.
    pub context_bytes: u64,
    told: BTreeSet<&'static str>,
}

impl Default for Budgets {
    fn default() -> Self {
        Budgets {
            contexts: 64,
            streams: 1 << 14,
            events: 1 << 18,
            modules: 1 << 16,
            graphs: 1 << 14,
            graph_nodes: 1 << 18,
            image_bytes: 1 << 30,
            shared_code_bytes: 0,
            pinned_bytes: 1 << 30,
            client_bytes: 1 << 30,
            mirror_bytes: 256 << 20,
            context_bytes: 0,
            told: BTreeSet::new(),
        }
    }
}

impl Budgets {
    /// Sets a limit from `NAME=NUMBER`. Returns `None` if the name or the number is not valid.
    pub fn set(&mut self, option: &str) -> Option<()> {
        let (name, number) = option.split_once('=')?;
        let budget = match name {
            "contexts" => &mut self.contexts,
            "streams" => &mut self.streams,
            "events" => &mut self.events,
            "modules" => &mut self.modules,
            "graphs" => &mut self.graphs,
            "graph-nodes" => &mut self.graph_nodes,
            "image-bytes" => &mut self.image_bytes,
            "shared-code-bytes" => &mut self.shared_code_bytes,
            "pinned-bytes" => &mut self.pinned_bytes,
            "client-bytes" => &mut self.client_bytes,
            "mirror-bytes" => &mut self.mirror_bytes,
            "context-bytes" => &mut self.context_bytes,
            _ => return None,
        };
        *budget = number.parse().ok()?;
        Some(())
    }

    /// Returns a line for the log, once for each kind of limit. The program itself only gets the error that memory is
    /// out.
    pub fn complain(&mut self, kind: &'static str, most: u64) -> Option<String> {
        let line = || format!("the session has its budget of {most} {kind}; see --session-budget of the appliance");
        self.told.insert(kind).then(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_set_by_name() {
        let mut budgets = Budgets::default();
        assert_eq!(budgets.set("streams=7"), Some(()));
        assert_eq!(budgets.set("graph-nodes=9"), Some(()));
        assert_eq!((budgets.streams, budgets.graph_nodes), (7, 9));
        assert_eq!([budgets.set("streams"), budgets.set("streams=-1"), budgets.set("unknown=1")], [None; 3]);
    }

    #[test]
    fn each_kind_is_complained_of_once() {
        let mut budgets = Budgets::default();
        let lines = ["streams", "streams", "events"].map(|kind| budgets.complain(kind, 1).is_some());
        assert_eq!(lines, [true, false, true]);
    }
}
