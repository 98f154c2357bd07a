//! Limits of one session besides the memory of its share. The appliance sets them.

use std::collections::BTreeSet;

/// Limits on the client's objects, in all contexts together, and on bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    pub contexts: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    /// Executable graphs.
    pub graphs: u64,
    /// Nodes of one executable graph, with those of its bodies.
    pub graph_nodes: u64,
    /// Images that are kept in memory of the machine.
    pub image_bytes: u64,
    /// Largest image that the appliance keeps for other sessions; 0 if it keeps none.
    pub shared_code_bytes: u64,
    /// Page-locked memory that copies pass through.
    pub pinned_bytes: u64,
    /// Page-locked memory of the client that is shared with it.
    pub client_bytes: u64,
    /// State that is kept for the client's memory that its kernels use in place.
    pub mirror_bytes: u64,
    /// Memory that the driver takes for a context. The appliance sets it aside for a device's first one; others are
    /// charged.
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
    /// Sets a limit from `NAME=NUMBER`; `None` if that is none of them.
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

    /// Returns a line for people, once for each kind: the program only learns that memory is out.
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
