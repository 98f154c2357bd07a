//! A session is suspended, resumed, or goes on in another worker.
//!
//! `plan` says what makes it anew (pure), `departure` collects it, `ahead` sends memory while the program still runs,
//! `arrival` receives; `hold` is what is kept meanwhile, `image` the sealed file of a suspended one. Called by
//! `session::server`.

pub mod ahead;
pub mod arrival;
pub mod brought;
pub mod departure;
pub mod ground;
pub mod hold;
pub mod image;
pub mod plan;
pub mod replay;
pub mod suspend;
