//! System calls that the standard library does not offer in the form that the client needs.

use crate::program::stats;
use driverapi::descriptors::apart;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

pub fn errno() -> i32 {
    // SAFETY: the location belongs to the calling thread and is always valid.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: i32) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}

/// Starts a thread with all signals blocked, so that no signal of the program is delivered to it.
///
/// # Errors
/// If the system has no more threads.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    without_signals(|| thread::Builder::new().name(name.to_owned()).spawn(body)).map(drop)
}

/// Runs `work` on a new thread and waits for it, because the calling thread may have a small stack. The bytes that
/// `work` sends are counted for the calling thread's current call.
///
/// # Errors
/// If the system has no more threads.
pub fn aside<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let call = stats::call();
    let work = move || {
        stats::go_on(call);
        (work(), stats::call())
    };
    let (result, call) = thread::scope(|scope| {
        let builder = thread::Builder::new().name(name.to_owned());
        let started = without_signals(|| builder.spawn_scoped(scope, work))?;
        started.join().map_err(|_| io::Error::other("a thread panicked"))
    })?;
    stats::go_on(call);
    Ok(result)
}

/// Runs `start` with all signals blocked. Threads that it starts inherit this.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are initialised by sigfillset and pthread_sigmask before they are read.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}

/// Blocks cancellation of the calling thread (`pthread_cancel`) until it is dropped, because cancellation would unwind
/// frames of this library. A cancelled thread ends at its next cancellation point.
pub struct Uncancelled(libc::c_int);

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

impl Uncancelled {
    pub fn new() -> Self {
        const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;
        let mut before = 0;
        // SAFETY: writes one number.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state came from the same function.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Makes short sleeps of the calling thread precise.
pub fn precise_sleeps() {
    // SAFETY: takes a number only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000usize) };
}

/// Borrows a descriptor that this process inherited at its start and never closes.
///
/// # Errors
/// If the number cannot be a descriptor.
pub fn inherited(fd: RawFd) -> io::Result<BorrowedFd<'static>> {
    if fd < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is not -1. The kernel checks it with each call; it owns no memory of this library.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The maximum number of pieces in one system call.
const PIECES: usize = 16;

/// Sends bytes of the pieces without copying them and without SIGPIPE. Blocks until the socket accepts some bytes, and
/// returns their number.
///
/// # Errors
/// Those of sendmsg.
pub fn send<'a>(socket: RawFd, pieces: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    send_with(socket, pieces, libc::MSG_NOSIGNAL)
}

/// Like [`send`], but does not block.
///
/// # Errors
/// Those of sendmsg; `WouldBlock` if the socket accepts no byte.
pub fn send_some<'a>(socket: RawFd, pieces: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    send_with(socket, pieces, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
}

fn send_with<'a>(socket: RawFd, pieces: impl Iterator<Item = &'a [u8]>, flags: i32) -> io::Result<usize> {
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
    let mut count = 0;
    for (part, piece) in parts.iter_mut().zip(pieces) {
        *part = libc::iovec { iov_base: piece.as_ptr() as *mut c_void, iov_len: piece.len() };
        count += 1;
    }
    // SAFETY: the message refers to `parts`, which refer to the borrowed pieces; sendmsg only reads them.
    retry(|| unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = count;
        libc::sendmsg(socket, &message, flags)
    })
}

/// Makes the descriptor `socket` refer to the same file as `other`, and closes its previous file.
///
/// # Errors
/// Those of dup3.
pub fn replace(socket: RawFd, other: RawFd) -> io::Result<()> {
    // SAFETY: takes numbers only; both are descriptors of this library.
    retry(|| unsafe { libc::dup3(other, socket, libc::O_CLOEXEC) as isize }).map(drop)
}

/// Receives at most `len` bytes to `to`, and returns their number; 0 is the end of the stream.
///
/// # Errors
/// Those of recv; `WouldBlock` if no byte is available and `wait` is not set, or after the socket's timeout.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
pub unsafe fn receive(socket: RawFd, to: *mut u8, len: usize, wait: bool) -> io::Result<usize> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the caller vouches for the memory.
    retry(|| unsafe { libc::recv(socket, to.cast(), len, flags) })
}

/// Waits until bytes can be received, at most for `limit`.
pub fn wait_until_readable(socket: RawFd, limit: Duration) {
    wait_until(socket, libc::POLLIN, limit);
}

/// Waits until bytes can be sent, at most for `limit`.
pub fn wait_until_writable(socket: RawFd, limit: Duration) {
    wait_until(socket, libc::POLLOUT, limit);
}

/// Waits until the other end is closed, at most for `limit`.
pub fn wait_until_closed(socket: RawFd, limit: Duration) {
    wait_until(socket, libc::POLLRDHUP, limit);
}

fn wait_until(socket: RawFd, events: libc::c_short, limit: Duration) {
    let mut waited = libc::pollfd { fd: socket, events, revents: 0 };
    let limit = libc::timespec { tv_sec: limit.as_secs() as libc::time_t, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: one entry and one time. An interruption or error makes the caller look at the socket, which is harmless.
    unsafe { libc::ppoll(&mut waited, 1, &limit, std::ptr::null()) };
}

/// Shuts both directions down, so that a thread which is blocked in the socket returns.
pub fn shut_down(socket: RawFd) {
    // SAFETY: takes numbers only.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

/// Sets the maximum duration of a receive. `None` means no limit.
pub fn receive_timeout(socket: RawFd, seconds: Option<u32>) {
    let limit = libc::timeval { tv_sec: seconds.unwrap_or(0).into(), tv_usec: 0 };
    // SAFETY: the kernel reads one timeval.
    unsafe {
        let size = size_of::<libc::timeval>() as libc::socklen_t;
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
    }
}

/// A watch on one socket for the background reader. Arming it enables one event.
pub struct Watch {
    epoll: OwnedFd,
    socket: RawFd,
}

impl Watch {
    /// Creates a watch that is not armed.
    ///
    /// # Errors
    /// Those of epoll_create1 and epoll_ctl.
    pub fn new(socket: RawFd) -> io::Result<Self> {
        // SAFETY: epoll_create1 returns a new descriptor or -1.
        let epoll = unsafe {
            let fd = apart(|| libc::epoll_create1(libc::EPOLL_CLOEXEC));
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let watch = Watch { epoll, socket };
        watch.control(libc::EPOLL_CTL_ADD, 0)?;
        Ok(watch)
    }

    /// Registers the socket again after [`replace`] changed its file.
    ///
    /// # Errors
    /// Those of epoll_ctl.
    pub fn renew(&self) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, 0)
    }

    pub fn arm(&self) {
        // This fails only for a closed socket, which has nothing to read.
        let _ = self.control(libc::EPOLL_CTL_MOD, (libc::EPOLLIN | libc::EPOLLONESHOT) as u32);
    }

    pub fn disarm(&self) {
        let _ = self.control(libc::EPOLL_CTL_MOD, libc::EPOLLONESHOT as u32);
    }

    /// Waits for the event at most for `limit`. Returns true if it happened.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event. An interruption or error makes the caller look at the socket, which is harmless.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &mut event, 1, limit.as_millis() as i32) != 0 }
    }

    fn control(&self, operation: i32, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: the kernel reads one event.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, self.socket, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Reserves a range of addresses without memory, at exactly `address`. Returns false if a part of it is used.
pub fn reserve(address: u64, size: u64) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let wanted = std::ptr::without_provenance_mut::<c_void>(address as usize);
    // SAFETY: MAP_FIXED_NOREPLACE never replaces a mapping; old kernels take the address as a hint, which is undone.
    unsafe {
        let got = libc::mmap(wanted, size as usize, libc::PROT_NONE, flags, -1, 0);
        if got != libc::MAP_FAILED && got != wanted {
            libc::munmap(got, size as usize);
        }
        got == wanted
    }
}

/// Maps zeroed memory at reserved addresses. Returns false if there is no memory.
///
/// # Safety
/// The range is part of one that [`reserve`] reserved, and has no memory yet.
pub unsafe fn back(address: usize, size: usize) -> bool {
    let place = std::ptr::without_provenance_mut(address);
    // SAFETY: as the caller vouches, nothing else lies there.
    unsafe { libc::mprotect(place, size, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// Like [`back`], with memory that children made by fork share.
///
/// # Safety
/// Same as [`back`].
pub unsafe fn back_for_children(address: usize, size: usize) -> bool {
    let (protection, place) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::without_provenance_mut(address));
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: as the caller vouches, nothing else lies there.
    unsafe { libc::mmap(place, size, protection, flags, -1, 0) != libc::MAP_FAILED }
}

/// Like [`back`], with the bytes of a file that other processes share.
///
/// # Safety
/// As [`back`]; the file has `size` bytes from `offset` on for good.
pub unsafe fn back_with(address: usize, size: usize, file: BorrowedFd<'_>, offset: u64) -> bool {
    let (protection, place) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::without_provenance_mut(address));
    // MAP_POPULATE charges the pages to this process. The kernel charges a page to its first user, which must not be
    // the worker.
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
    // SAFETY: as the caller vouches, nothing else lies there.
    unsafe { libc::mmap(place, size, protection, flags, file.as_raw_fd(), offset as i64) != libc::MAP_FAILED }
}

/// Unmaps the memory. The addresses stay reserved.
///
/// # Safety
/// The range was given to [`back`], and nothing uses its memory any more.
pub unsafe fn unback(address: usize, size: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as the caller vouches.
    unsafe { libc::mmap(std::ptr::without_provenance_mut(address), size, libc::PROT_NONE, flags, -1, 0) };
}

/// Returns whether the page of this address has memory or is reserved.
pub fn is_mapped(address: usize) -> bool {
    const PAGE: usize = 4096;
    let mut resident = 0u8;
    // SAFETY: mincore looks the page up and touches none; its answer for one page is one byte.
    unsafe { libc::mincore(std::ptr::without_provenance_mut(address / PAGE * PAGE), 1, &raw mut resident) == 0 }
}

/// Reads the ranges `places`, one after the other, from memory of this process that may be unmapped. Returns false if a
/// part of it is.
pub fn read_memory(places: &[Range<usize>], to: &mut [u8]) -> bool {
    let own = to.as_mut_ptr();
    assert_eq!(places.iter().map(Range::len).sum::<usize>(), to.len());
    // SAFETY: `own` has as many bytes as the places, and may be written.
    unsafe {
        transfer(libc::process_vm_readv, own, places, |own, remote, len| own.copy_from_nonoverlapping(remote, len))
    }
}

/// Writes the ranges `places` as [`read_memory`] reads them.
pub fn write_memory(places: &[Range<usize>], from: &[u8]) -> bool {
    let own = from.as_ptr().cast_mut();
    assert_eq!(places.iter().map(Range::len).sum::<usize>(), from.len());
    // SAFETY: `own` has as many bytes as the places, and is only read.
    unsafe {
        transfer(libc::process_vm_writev, own, places, |own, remote, len| remote.copy_from_nonoverlapping(own, len))
    }
}

type Transfer = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// Copies between `own` and the ranges. Returns whether all bytes were copied. If a sandbox forbids the system call,
/// uses `copy` and assumes that the memory is still mapped.
///
/// # Safety
/// `own` has as many bytes as the places together.
unsafe fn transfer(
    call: Transfer,
    mut own: *mut u8,
    places: &[Range<usize>],
    copy: unsafe fn(*mut u8, *mut u8, usize),
) -> bool {
    let remote = |place: &Range<usize>| std::ptr::with_exposed_provenance_mut::<u8>(place.start);
    for some in places.chunks(libc::UIO_MAXIOV as usize) {
        let vector = |place: &Range<usize>| libc::iovec { iov_base: remote(place).cast(), iov_len: place.len() };
        let there: Vec<_> = some.iter().map(vector).collect();
        let len = there.iter().map(|place| place.iov_len).sum();
        let here = libc::iovec { iov_base: own.cast(), iov_len: len };
        // SAFETY: `own` has `len` bytes, and the kernel reports an error for remote ranges that are not mapped.
        match unsafe { call(libc::getpid(), &raw const here, 1, there.as_ptr(), there.len() as libc::c_ulong, 0) } {
            count if count >= 0 && count as usize == len => {}
            -1 if matches!(errno(), libc::EPERM | libc::ENOSYS) => {
                let mut own = own;
                for place in some {
                    // SAFETY: the caller vouches for `own`, and registered memory is mapped.
                    unsafe { copy(own, remote(place), place.len()) };
                    own = own.wrapping_add(place.len());
                }
            }
            _ => return false,
        }
        own = own.wrapping_add(len);
    }
    true
}

/// Returns page-aligned zeroed memory for pinned allocations, or null if there is none.
pub fn allocate_pages(size: usize) -> *mut u8 {
    new_pages(size, libc::MAP_PRIVATE)
}

/// Like [`allocate_pages`], with pages that children made by fork share.
pub fn allocate_pages_for_children(size: usize) -> *mut u8 {
    new_pages(size, libc::MAP_SHARED)
}

fn new_pages(size: usize, kind: i32) -> *mut u8 {
    let flags = kind | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if got == libc::MAP_FAILED { std::ptr::null_mut() } else { got.cast() }
}

/// Frees memory of [`allocate_pages`].
///
/// # Safety
/// The range came from [`allocate_pages`] and nothing uses it any more.
pub unsafe fn free_pages(address: *mut u8, size: usize) {
    // SAFETY: as the caller vouches.
    unsafe { libc::munmap(address.cast(), size) };
}

/// Writes bytes to a descriptor of the program, such as its standard output for the output of kernels.
pub fn write_all(fd: RawFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: write only reads the borrowed bytes.
        match retry(|| unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) }) {
            Ok(n) if n > 0 => bytes = &bytes[n..],
            _ => return,
        }
    }
}

/// Returns the address of a function that this library exports, or null.
pub fn own_function(name: &str) -> *const c_void {
    static OWN: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let own = *OWN.get_or_init(|| {
        // SAFETY: dladdr fills `info` for an address inside this library; the library is loaded, so opening it again
        // only counts, and it is meant to stay.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            let here = own_function as *const c_void;
            if libc::dladdr(here, &mut info) == 0 {
                return 0;
            }
            libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD).expose_provenance()
        }
    });
    let Ok(name) = std::ffi::CString::new(name) else { return std::ptr::null() };
    if own == 0 || !name.as_bytes().starts_with(b"cu") {
        return std::ptr::null();
    }
    // SAFETY: the handle is that of this library.
    unsafe { libc::dlsym(std::ptr::with_exposed_provenance_mut(own), name.as_ptr()) }
}
