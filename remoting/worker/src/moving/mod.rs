//! Suspends and resumes a session, or moves it to another worker.
//!
//! `plan` recreates it there, `departure` collects the plan, `precopy` sends memory `ahead` while the program still
//! runs, `arrival` receives; `hold` is the state meanwhile, `image` the sealed file of a suspended session. Called by
//! `session::server`.

pub mod ahead;
pub mod arrival;
pub mod brought;
pub mod departure;
pub mod ground;
pub mod hold;
pub mod image;
pub mod plan;
pub mod precopy;
pub mod replay;
pub mod suspend;
