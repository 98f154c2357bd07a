//! Names for the rules of order in `remoting/registry/wire-format.md`, and of mirrors in `docs/page-locked-memory.md`. In
//! a build with the feature `order-faults`, the variable `REMOTEGPU_ORDER_FAULT` names a rule that is left out, to show
//! that the tests detect its absence. `RULE:PLACE` leaves it out at one place.

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
    /// After a wait the client gets only changed words.
    MirrorWords = "mirror-words";
    /// The client gets a change once.
    MirrorOnce = "mirror-once";
    /// A mirror begins with the bytes that the memory has, without a report.
    MirrorBegin = "mirror-begin";
    /// One reading serves all completions before it.
    MirrorShared = "mirror-shared";
    /// A completion after the beginning of a reading waits for the next one.
    MirrorNext = "mirror-next";
    /// Mirrors are read only if streams were given work since the last reading.
    MirrorUntouched = "mirror-untouched";
    /// The reply to a synchronising command comes after the words.
    MirrorReply = "mirror-reply";
    /// The answer of a query that work is complete comes after the words.
    MirrorQuery = "mirror-query";
    /// The report of a complete event comes after the words.
    MirrorEvent = "mirror-event";
    /// The call of a host function comes after the words.
    MirrorCallback = "mirror-callback";
    /// The answer of a fence comes after the words.
    MirrorFence = "mirror-fence";
    /// A word that the client changed during a reading is not reported by that reading.
    MirrorMeanwhile = "mirror-meanwhile";
    /// A word that the client changed after a reading keeps the client's value.
    MirrorVersions = "mirror-versions";
    /// The client hears which of its changes a reading contains.
    MirrorConfirm = "mirror-confirm";
    /// The client forgets changes that a reading contains.
    MirrorConfirmed = "mirror-confirmed";
    /// A word that the device wrote does not count as a change of the host.
    MirrorBase = "mirror-base";
    /// A mirror that has ended is neither read nor changed.
    MirrorEnded = "mirror-ended";
    /// A mirror's end brings what the device wrote.
    MirrorEnd = "mirror-end";
    /// A call that lets the host see work applies the words that came before its answer.
    MirrorApply = "mirror-apply";
    /// It applies those of other appliances too.
    MirrorOthers = "mirror-others";
    /// The host's changes are sent before work.
    MirrorWork = "mirror-work";
    /// The host's changes are sent before a wait.
    MirrorWait = "mirror-wait";
    /// The host's changes are on the device before a stream continues after a wait for a word.
    MirrorWord = "mirror-word";
    /// The work of streams comes after the changes that were sent before it.
    MirrorHold = "mirror-hold";
    /// One command brings the changes of all mirrors.
    MirrorCommand = "mirror-command";
    /// A command of changes has at most `BULK_CHUNK` bytes.
    MirrorWindow = "mirror-window";
    /// The state of mirrors has a limit for each session.
    MirrorCharge = "mirror-charge";
    /// A suspended session's client knows what the device wrote.
    MirrorSettled = "mirror-settled";
    /// A session that moves has applied what its client sent before.
    MirrorMoved = "mirror-moved";
    /// A wait without a round trip needs to know that all output was reported.
    IdleTold = "idle-told";
    /// It needs to know that the error of each command without a stream was reported.
    IdleLoose = "idle-loose";
    /// It needs that nothing is under way in another stream.
    IdleQuiet = "idle-quiet";
    /// It sends the commands that were appended.
    IdleFlush = "idle-flush";
    /// It returns the sticky error.
    IdleSticky = "idle-sticky";
    /// It returns the client's late error.
    IdleLate = "idle-late";
    /// Writes are tracked only if the user allows it.
    TrackAsked = "track-asked";
    /// Tracking is used only if it sees a trial write.
    TrackProbe = "track-probe";
    /// Memory that other mappings may write is compared.
    TrackPrivate = "track-private";
    /// Created memory at several addresses is compared.
    TrackAlias = "track-alias";
    /// Parts of pages are compared.
    TrackEdges = "track-edges";
    /// The software GPU reports pages that it gave back.
    TrackHoles = "track-holes";
    /// Mirrors have a limit.
    MirrorBudget = "mirror-budget";
}

/// Whether the rule is in force. Always true in a released build.
#[cfg(not(feature = "order-faults"))]
pub const fn kept(_rule: Rule) -> bool {
    true
}

/// Whether the rule is in force at a place. Always true in a released build.
#[cfg(not(feature = "order-faults"))]
pub fn kept_at<'a>(_rule: Rule, _place: impl FnOnce() -> &'a str) -> bool {
    true
}

#[cfg(feature = "order-faults")]
pub use faults::{kept, kept_at};

#[cfg(feature = "order-faults")]
mod faults {
    use super::Rule;
    use std::sync::LazyLock;

    static FAULT: LazyLock<Option<(Rule, String)>> = LazyLock::new(|| {
        let fault = std::env::var("REMOTEGPU_ORDER_FAULT").ok()?;
        let (name, place) = fault.split_once(':').unwrap_or((&fault, ""));
        Rule::ALL.iter().find(|(_, rule)| *rule == name).map(|(rule, _)| (*rule, place.to_owned()))
    });

    pub fn kept(rule: Rule) -> bool {
        FAULT.as_ref().is_none_or(|(fault, _)| *fault != rule)
    }

    pub fn kept_at<'a>(rule: Rule, place: impl FnOnce() -> &'a str) -> bool {
        kept(rule) || FAULT.as_ref().is_some_and(|(_, at)| !at.is_empty() && at != place())
    }
}
