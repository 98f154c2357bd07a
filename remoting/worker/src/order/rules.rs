//! The rules of order, by name: the table of `remoting/registry/wire-format.md`. A build with the feature `order-faults`
//! leaves out the one that `REMOTEGPU_ORDER_FAULT` names, so that the tests of order can be seen to fail.

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
    /// Work that is given to a stream comes after all that was given to it before.
    StreamOrder = "stream-order";
    /// Work of the legacy stream and of blocking streams comes in the order in which it was given.
    LegacyOrder = "legacy-order";
    /// A stream that waits for an event waits for the record that was the latest when the wait was given.
    EventWait = "event-wait";
    /// Waiting for an event, and querying it, comes after its record.
    EventState = "event-state";
    /// The last of several records of an event counts, in whatever order streams reach them.
    EventLatest = "event-latest";
    /// An event that is destroyed keeps its records for commands that were given before.
    EventDestroy = "event-destroy";
    /// A query whether a stream is idle comes after the work that it was given.
    StreamState = "stream-state";
    /// A launch runs with the settings that its function had when the launch was given.
    FunctionSettings = "function-settings";
    /// Limits of a context change after the launches that were given before.
    ContextLimits = "context-limits";
    /// A wait for a context covers everything that was given to it.
    ContextWait = "context-wait";
    /// A module is unloaded after everything that its context was given.
    ModuleUnload = "module-unload";
    /// A stream is destroyed after the work that it was given.
    StreamDestroy = "stream-destroy";
    /// A context is destroyed after everything that it was given.
    ContextDestroy = "context-destroy";
    /// Memory is reused and unmapped after the work that was given before it was freed.
    Fence = "fence";
    /// New memory is zeroed before any work that was given after it was mapped.
    Zeroing = "zeroing";
    /// A stream waits while the program runs its host function.
    HostFunction = "host-function";
    /// No launch is lost without an error.
    LaunchCount = "launch-count";
}

/// Whether this rule is kept. Always true in a released build.
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
