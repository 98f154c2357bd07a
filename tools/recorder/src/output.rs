//! The output file of a recording. It is written through a shared mapping, so that it contains all lines even if the
//! process is killed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{Ordering, compiler_fence};

const WINDOW: u64 = 1 << 20;
const PAGE: u64 = 4096;

pub struct Output {
    file: File,
    window: *mut u8,
    /// The offset of the mapped window in the file.
    start: u64,
    size: u64,
    length: u64,
    lines: usize,
    /// Whether the process is ending. Then no more space is reserved.
    closed: bool,
}

/// SAFETY: only this value uses the window.
unsafe impl Send for Output {}

impl Output {
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Self { file, window: std::ptr::null_mut(), start: 0, size: 0, length: 0, lines: 0, closed: false })
    }

    /// Returns the number that the next line will get. Numbers start at 1.
    pub fn next_line(&self) -> usize {
        self.lines + 1
    }

    /// Appends a line and returns its number. The newline is written last, so that a line without newline is known to
    /// be incomplete.
    pub fn append(&mut self, line: &str) -> io::Result<usize> {
        let bytes = line.as_bytes();
        let end = self.length + bytes.len() as u64 + 1;
        if self.closed {
            self.file.write_all_at(&[bytes, b"\n"].concat(), self.length)?;
        } else {
            if end > self.start + self.size {
                self.open_window(bytes.len() as u64 + 1)?;
            }
            // SAFETY: the window was extended above, so that it reaches to `end`.
            unsafe {
                let place = self.window.add((self.length - self.start) as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
                compiler_fence(Ordering::SeqCst);
                place.add(bytes.len()).write_volatile(b'\n');
            }
        }
        self.length = end;
        self.lines += 1;
        Ok(self.lines)
    }

    /// Maps a window with room for at least `needed` more bytes. The disk space is allocated first, because a write to
    /// a shared page without disk space would raise a signal.
    fn open_window(&mut self, needed: u64) -> io::Result<()> {
        self.close_window();
        self.start = self.length / PAGE * PAGE;
        self.size = (self.length - self.start + needed).next_multiple_of(WINDOW);
        // SAFETY: the descriptor is open.
        let code = unsafe { libc::posix_fallocate(self.file.as_raw_fd(), self.start as i64, self.size as i64) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (size, fd, start) = (self.size as usize, self.file.as_raw_fd(), self.start as i64);
        // SAFETY: a new mapping of a part of the file that has disk space.
        let window = unsafe { libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, fd, start) };
        if window == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.window = window.cast();
        Ok(())
    }

    fn close_window(&mut self) {
        if !self.window.is_null() {
            // SAFETY: `open_window` mapped the window.
            unsafe { libc::munmap(self.window.cast(), self.size as usize) };
        }
        (self.window, self.size) = (std::ptr::null_mut(), 0);
    }

    /// Truncates the file to the written lines.
    pub fn close(&mut self) -> io::Result<()> {
        self.closed = true;
        self.close_window();
        self.file.set_len(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_there_at_once_and_after_the_end() {
        let path = std::env::temp_dir().join(format!("remotegpu-trace-output-{}", std::process::id()));
        let mut output = Output::create(&path).unwrap();
        let long = "x".repeat(WINDOW as usize + 5);
        assert_eq!(output.append("first").unwrap(), 1);
        assert_eq!(output.append(&long).unwrap(), 2);
        let text = format!("first\n{long}\n");
        let seen = std::fs::read(&path).unwrap();
        assert!(seen.starts_with(text.as_bytes()) && seen[text.len()..].iter().all(|byte| *byte == 0));
        output.close().unwrap();
        assert_eq!(output.append("last").unwrap(), 3);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text + "last\n");
        std::fs::remove_file(&path).unwrap();
    }
}
