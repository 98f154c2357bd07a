//! Signal masks, the scheduling of threads, and hooks of the process: exit, fork and output.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks all signals except SIGSEGV, and returns the old mask. A thread's own fault raises SIGSEGV, and if it were
/// blocked the process would end.
pub fn block_all() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises `all`; pthread_sigmask cannot fail with SIG_SETMASK and fills `old`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGSEGV);
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        old.assume_init()
    }
}

pub fn restore(old: &libc::sigset_t) {
    // SAFETY: a mask that pthread_sigmask gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, ptr::null_mut()) };
}

/// Makes the calling thread wait for the CPU instead of preempting the thread that woke it. Otherwise a stream's thread
/// would interrupt the thread that submits work at each operation.
pub fn never_preempt() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one structure; it may refuse, and then the thread is as it was.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &priority) };
}

static ENDED: AtomicBool = AtomicBool::new(false);

/// Records the end of the process. It runs after the program's exit handlers and the destructors of its static objects.
extern "C" fn finish() {
    ENDED.store(true, Ordering::Release);
}

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

/// Whether the process is ending. All calls fail then.
pub fn has_ended() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// Registers `in_child` to run in every forked child.
pub fn watch_forks(in_child: extern "C" fn()) {
    // SAFETY: the function only stores to an atomic, which is allowed at any time.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

/// Writes the text of device printf to C's stdout, so that it is in order with the program's own printf.
pub fn print(text: &[u8]) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
    }
    // SAFETY: C's stdout lives as long as the process; the bytes are a live slice.
    unsafe {
        libc::fwrite(text.as_ptr().cast(), 1, text.len(), stdout);
        libc::fflush(stdout);
    }
}

/// Returns the address of a function that this library exports, or null. Only this library is searched, so another
/// libcuda in the program is not used.
pub fn own_symbol(name: &str) -> *const libc::c_void {
    static SELF: OnceLock<usize> = OnceLock::new();
    let Ok(name) = CString::new(name) else { return ptr::null() };
    // SAFETY: dladdr is given an address inside this library; dlopen with NOLOAD of its own path only adds a
    // reference; dlsym gets a live handle and a C string.
    unsafe {
        let library = *SELF.get_or_init(|| {
            let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
            if libc::dladdr(own_symbol as *const libc::c_void, info.as_mut_ptr()) == 0 {
                return 0;
            }
            libc::dlopen(info.assume_init().dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY) as usize
        });
        if library == 0 { ptr::null() } else { libc::dlsym(ptr::with_exposed_provenance_mut(library), name.as_ptr()) }
    }
}
