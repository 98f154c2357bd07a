//! Names for the rules of order in `remoting/registry/wire-format.md`. In a build with the feature `order-faults`, the
//! variable `REMOTEGPU_ORDER_FAULT` names a rule that is left out, to show that the tests of order detect its absence.

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident = $name:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Rule { $($(#[$doc])* $rule),* }

        impl Rule {
            pub const ALL: &[(Rule, &str)] = &[$((Rule::$rule, $name)),*];
        }
    };
}

rules! {
    /// A stream executes its work in the order in which the work was given to the stream.
    StreamOrder = "stream-order";
    /// The legacy stream and the blocking streams together execute their work in the order in which it was given.
    LegacyOrder = "legacy-order";
    /// A stream that waits for an event waits for the record that was the latest when the wait was given.
    EventWait = "event-wait";
    /// A wait for an event, or a query of it, comes after the event's record.
    EventState = "event-state";
    /// If an event is recorded several times, the last record given counts, in whatever order streams reach the
    /// records.
    EventLatest = "event-latest";
    /// The records of a destroyed event stay valid for commands that were given before.
    EventDestroy = "event-destroy";
    /// A query whether a stream is idle comes after the work that the stream was given before.
    StreamState = "stream-state";
    /// A launch runs with the settings that its function had when the launch was given.
    FunctionSettings = "function-settings";
    /// Limits of a context change after the launches that were given before.
    ContextLimits = "context-limits";
    /// A wait for a context covers all work that the context was given before.
    ContextWait = "context-wait";
    /// A module is unloaded after all work that its context was given before.
    ModuleUnload = "module-unload";
    /// A stream is destroyed after the work that the stream was given before.
    StreamDestroy = "stream-destroy";
    /// A context is destroyed after all work that the context was given before.
    ContextDestroy = "context-destroy";
    /// Memory is reused and unmapped after the work that was given before the memory was freed.
    Fence = "fence";
    /// New memory is zeroed before any work that was given after the memory was mapped.
    Zeroing = "zeroing";
    /// A stream waits while the program runs its host function.
    HostFunction = "host-function";
    /// No launch is lost without an error.
    LaunchCount = "launch-count";
}

/// Whether the rule is in force. Always true in a released build.
#[cfg(not(feature = "order-faults"))]
pub const fn kept(_rule: Rule) -> bool {
    true
}

#[cfg(feature = "order-faults")]
pub fn kept(rule: Rule) -> bool {
    static FAULT: std::sync::LazyLock<Option<Rule>> = std::sync::LazyLock::new(|| {
        let name = std::env::var("REMOTEGPU_ORDER_FAULT").ok()?;
        Rule::ALL.iter().find(|(_, rule)| *rule == name).map(|(rule, _)| *rule)
    });
    *FAULT != Some(rule)
}
