//! System calls that the standard library does not offer in the form needed here.

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

/// Starts a thread that no signal of the program is ever delivered to.
///
/// # Errors
/// If the system has no more threads.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    without_signals(|| thread::Builder::new().name(name.to_owned()).spawn(body)).map(drop)
}

/// Runs `work` on a thread of ours and waits for it: the calling thread may have a small stack. What it sends counts
/// for the call that this thread is in.
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

/// Runs `start` with all signals blocked, as the threads that it starts then have them.
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

/// Keeps the calling thread from being cancelled (`pthread_cancel`) while it lives: that would unwind through frames of
/// this library. A thread that was asked to end does so at its next cancellation point.
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
        // SAFETY: a state that the function gave.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Makes short sleeps of the calling thread precise.
pub fn precise_sleeps() {
    // SAFETY: takes a number only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000usize) };
}

/// Borrows a descriptor that this process was started with, which stays open until its end.
///
/// # Errors
/// If the number can be none.
pub fn inherited(fd: RawFd) -> io::Result<BorrowedFd<'static>> {
    if fd < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: not -1. The kernel checks the number with each call; it owns no memory of ours.
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

/// Pieces that one system call sends.
const PIECES: usize = 16;

/// Sends as much of the pieces as the socket takes, without a copy and without SIGPIPE; blocks until it takes some.
///
/// # Errors
/// As sendmsg.
pub fn send<'a>(socket: RawFd, pieces: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    send_with(socket, pieces, libc::MSG_NOSIGNAL)
}

/// Sends what fits at once.
///
/// # Errors
/// As sendmsg; `WouldBlock` if nothing fits.
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

/// Makes the number `socket` stand for the same as `other`; what it stood for before is closed.
///
/// # Errors
/// As dup3.
pub fn replace(socket: RawFd, other: RawFd) -> io::Result<()> {
    // SAFETY: takes numbers only; both are descriptors of this library.
    retry(|| unsafe { libc::dup3(other, socket, libc::O_CLOEXEC) as isize }).map(drop)
}

/// Receives at most `len` bytes to `to`; 0 is the end of the stream.
///
/// # Errors
/// As recv; `WouldBlock` if not `wait` and nothing is there.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
pub unsafe fn receive(socket: RawFd, to: *mut u8, len: usize, wait: bool) -> io::Result<usize> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the caller vouches for the memory.
    retry(|| unsafe { libc::recv(socket, to.cast(), len, flags) })
}

/// Returns when there is something to receive, or after `limit`.
pub fn wait_until_readable(socket: RawFd, limit: Duration) {
    wait_until(socket, libc::POLLIN, limit);
}

/// Returns when the socket takes more, or after `limit`.
pub fn wait_until_writable(socket: RawFd, limit: Duration) {
    wait_until(socket, libc::POLLOUT, limit);
}

/// Returns when the other end is closed, or after `limit`.
pub fn wait_until_closed(socket: RawFd, limit: Duration) {
    wait_until(socket, libc::POLLRDHUP, limit);
}

fn wait_until(socket: RawFd, events: libc::c_short, limit: Duration) {
    let mut waited = libc::pollfd { fd: socket, events, revents: 0 };
    let limit = libc::timespec { tv_sec: limit.as_secs() as libc::time_t, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: one entry and one time. An interruption or error makes the caller look at the socket, which is harmless.
    unsafe { libc::ppoll(&mut waited, 1, &limit, std::ptr::null()) };
}

/// Ends both directions, so that a thread blocked in the socket returns.
pub fn shut_down(socket: RawFd) {
    // SAFETY: takes numbers only.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

/// Limits how long a receive may block; `None` is forever.
pub fn receive_timeout(socket: RawFd, seconds: Option<u32>) {
    let limit = libc::timeval { tv_sec: seconds.unwrap_or(0).into(), tv_usec: 0 };
    // SAFETY: the kernel reads one timeval.
    unsafe {
        let size = size_of::<libc::timeval>() as libc::socklen_t;
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
    }
}

/// Watches one socket for the background reader; armed for one event at a time.
pub struct Watch {
    epoll: OwnedFd,
    socket: RawFd,
}

impl Watch {
    /// # Errors
    /// As epoll_create1 and epoll_ctl.
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

    /// Watches again after the socket's number came to stand for another socket.
    ///
    /// # Errors
    /// As epoll_ctl.
    pub fn renew(&self) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, 0)
    }

    pub fn arm(&self) {
        // Fails only for a socket that is gone, and then there is nothing to read.
        let _ = self.control(libc::EPOLL_CTL_MOD, (libc::EPOLLIN | libc::EPOLLONESHOT) as u32);
    }

    pub fn disarm(&self) {
        let _ = self.control(libc::EPOLL_CTL_MOD, libc::EPOLLONESHOT as u32);
    }

    /// Returns when there is something to read and the watch was armed: true; or after `limit`: false.
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

/// Reserves a range of addresses without memory, at `address` and nowhere else.
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

/// Puts zeroed memory behind reserved addresses; false if there is none.
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
/// As [`back`].
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
    // MAP_POPULATE charges the pages to this process: the first user is charged for a page, and must not be the worker.
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
    // SAFETY: as the caller vouches, nothing else lies there.
    unsafe { libc::mmap(place, size, protection, flags, file.as_raw_fd(), offset as i64) != libc::MAP_FAILED }
}

/// Takes the memory away again; the addresses stay reserved.
///
/// # Safety
/// The range was given to [`back`], and nothing uses its memory any more.
pub unsafe fn unback(address: usize, size: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as the caller vouches.
    unsafe { libc::mmap(std::ptr::without_provenance_mut(address), size, libc::PROT_NONE, flags, -1, 0) };
}

/// Whether the process has memory, or reserved addresses, in the page of this address.
pub fn is_mapped(address: usize) -> bool {
    const PAGE: usize = 4096;
    let mut resident = 0u8;
    // SAFETY: mincore looks the page up and touches none; its answer for one page is one byte.
    unsafe { libc::mincore(std::ptr::without_provenance_mut(address / PAGE * PAGE), 1, &raw mut resident) == 0 }
}

/// Reads memory of this process that may be gone by now, at these addresses one after the other; false if some of it
/// is.
pub fn read_memory(places: &[Range<usize>], to: &mut [u8]) -> bool {
    let own = to.as_mut_ptr();
    assert_eq!(places.iter().map(Range::len).sum::<usize>(), to.len());
    // SAFETY: `own` has as many bytes as the places, and may be written.
    unsafe {
        transfer(libc::process_vm_readv, own, places, |own, remote, len| own.copy_from_nonoverlapping(remote, len))
    }
}

/// Like [`read_memory`], but writes.
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

/// Copies between `own` and the places; returns whether all of the bytes were copied. Where a sandbox forbids the call,
/// the memory is assumed to be as registered, and `copy` is called.
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
        // SAFETY: `own` has `len` bytes, and the kernel answers for remote ranges that are not there.
        match unsafe { call(libc::getpid(), &raw const here, 1, there.as_ptr(), there.len() as libc::c_ulong, 0) } {
            count if count >= 0 && count as usize == len => {}
            -1 if matches!(errno(), libc::EPERM | libc::ENOSYS) => {
                let mut own = own;
                for place in some {
                    // SAFETY: the caller's, and what was registered is there.
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

/// Page-aligned zeroed memory for pinned allocations; null if there is none.
pub fn allocate_pages(size: usize) -> *mut u8 {
    new_pages(size, libc::MAP_PRIVATE)
}

/// Like [`allocate_pages`]; children made by fork share the pages.
pub fn allocate_pages_for_children(size: usize) -> *mut u8 {
    new_pages(size, libc::MAP_SHARED)
}

fn new_pages(size: usize, kind: i32) -> *mut u8 {
    let flags = kind | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if got == libc::MAP_FAILED { std::ptr::null_mut() } else { got.cast() }
}

/// # Safety
/// The range came from [`allocate_pages`] and nothing uses it any more.
pub unsafe fn free_pages(address: *mut u8, size: usize) {
    // SAFETY: as the caller vouches.
    unsafe { libc::munmap(address.cast(), size) };
}

/// Writes bytes to a descriptor of the program (what kernels print goes to its standard output).
pub fn write_all(fd: RawFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: write only reads the borrowed bytes.
        match retry(|| unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) }) {
            Ok(n) if n > 0 => bytes = &bytes[n..],
            _ => return,
        }
    }
}

/// The address of a function that this library exports, or null.
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
