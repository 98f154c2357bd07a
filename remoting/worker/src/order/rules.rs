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
    /// What is given to a stream stands behind all that was given to it before.
    StreamOrder = "stream-order";
    /// Work of the legacy stream and of blocking streams stands behind each other's.
    LegacyOrder = "legacy-order";
    /// A stream that waits for an event waits for the record that was the latest when it was told to.
    EventWait = "event-wait";
    /// Waiting for an event, and asking for it, stands behind its record.
    EventState = "event-state";
    /// Of several records of an event the one that was made last counts, in whatever order streams get there.
    EventLatest = "event-latest";
    /// An event that is destroyed keeps its records for commands that were given before.
    EventDestroy = "event-destroy";
    /// A question whether a stream is idle stands behind what it was given.
    StreamState = "stream-state";
    /// A launch runs with the settings that its function had when the launch was given.
    FunctionSettings = "function-settings";
    /// Limits of a context change behind the launches that were given before.
    ContextLimits = "context-limits";
    /// A context is waited for with everything that was given to it.
    ContextWait = "context-wait";
    /// A module is unloaded behind everything that its context was given.
    ModuleUnload = "module-unload";
    /// A stream is destroyed behind what it was given.
    StreamDestroy = "stream-destroy";
    /// A context is destroyed behind everything that it was given.
    ContextDestroy = "context-destroy";
    /// Memory is reused and unmapped behind what was given before it was freed.
    Fence = "fence";
    /// New memory is zeroed before anything that was given after it was mapped.
    Zeroing = "zeroing";
    /// A stream stands still while the program runs its host function.
    HostFunction = "host-function";
    /// No launch is lost without an error.
    LaunchCount = "launch-count";
}

/// Is this rule kept? A constant in every build that is released.
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
