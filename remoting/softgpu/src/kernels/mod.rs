pub mod code;
pub mod jit;
pub mod launch;
pub mod link;
pub mod loading;
pub mod rules;
pub mod source;
