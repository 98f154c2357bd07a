//! Suspends and resumes a session, or moves it to another worker.
//!
//! `plan` recreates the session at the other worker, and `departure` collects the plan. `precopy` sends memory while
//! the program still runs, to the worker in `ahead`. `arrival` receives a session. `hold` is the state of a session
//! that does not run, and `image` is the sealed file of a suspended session. `session::server` calls this folder.

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
