//! The mark of threads that run kernels or copies. The handler of memory faults helps only these threads.

use std::cell::Cell;

thread_local! {
    static COMPUTES: Cell<bool> = const { Cell::new(false) };
}

/// Runs a part of a kernel or a copy with the calling thread marked as computing.
pub fn computing<T>(job: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            COMPUTES.set(self.0);
        }
    }
    let _before = Before(COMPUTES.replace(true));
    job()
}

/// Whether the calling thread is computing. A signal handler may call this.
pub fn computes() -> bool {
    COMPUTES.get()
}
