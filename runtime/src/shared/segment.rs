//! Memory that several processes have. All of them read and write it by atomic words of 64 bits alone.
#![allow(unsafe_code)]

use crate::error::Error;
use rustix::fs::memfd_create;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = 8;

/// Memory that several processes have mapped. It begins as zeros, and is gone with the last of them.
#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the mapping is of no thread, and is accessed by atomic words alone.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

fn refused(what: &str, bytes: u64, why: Errno) -> Error {
    Error::TooLarge {
        what: format!("{what} {bytes} bytes that processes share: {why}"),
        help: "free memory, addresses or file descriptors, as that says".into(),
    }
}

impl Segment {
    /// New memory, and what hands it to peers. It is taken from the system as it is touched.
    pub fn create(name: &str, bytes: u64) -> Result<(Segment, OwnedFd), Error> {
        let bytes = bytes.next_multiple_of(WORD as u64);
        let made = || {
            let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&fd, bytes)?;
            // Nobody can take the memory away under those who have mapped it.
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(fd)
        };
        let fd = made().map_err(|why| refused("make", bytes, why))?;
        Ok((Segment::of(&fd, bytes)?, fd))
    }

    /// Memory that a peer made. It needs no file descriptor any more.
    pub fn of(fd: &OwnedFd, bytes: u64) -> Result<Segment, Error> {
        let bytes = bytes.next_multiple_of(WORD as u64);
        let sealed = fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let long = fstat(fd).is_ok_and(|about| u64::try_from(about.st_size) == Ok(bytes));
        if !sealed || !long {
            return Err(Error::Mismatch {
                what: format!("a peer shares something else than memory of {bytes} bytes"),
                help: "run one version of counterflow in all processes".into(),
            });
        }
        // SAFETY: a new mapping, at an address that the system chooses. The file cannot become shorter.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        };
        let start = start.map_err(|why| refused("map", bytes, why))?;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| refused("map", bytes, Errno::NOMEM))?;
        Ok(Segment {
            start,
            bytes: bytes as usize,
        })
    }

    /// Address at which it starts, for a driver that lets GPUs access it.
    pub fn start(&self) -> NonNull<c_void> {
        self.start.cast()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Makes all of it zero. Nobody else uses it.
    pub fn clear(&self) {
        for at in (0..self.bytes).step_by(WORD) {
            self.word(at as u64).store(0, Ordering::Relaxed);
        }
    }

    /// The word at that distance from the start.
    ///
    /// # Panics
    /// If it is no multiple of 8, or beyond the end.
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        let offset = offset as usize;
        assert!(
            offset.is_multiple_of(WORD) && offset < self.bytes,
            "word {offset} of {}",
            self.bytes
        );
        // SAFETY: it is inside of the mapping, which is aligned to pages and lives as long as this. Every process
        // accesses it by atomic words of this size alone.
        unsafe { self.start.add(offset / WORD).as_ref() }
    }

    /// The words of a range: each with where the range's part of it begins, counted from the range's start, and which of
    /// its bytes belong to it.
    fn words(
        &self,
        offset: u64,
        len: usize,
    ) -> impl Iterator<Item = (&AtomicU64, usize, std::ops::Range<usize>)> {
        let (from, end) = (offset as usize, offset as usize + len);
        (from / WORD..end.div_ceil(WORD)).map(move |index| {
            let start = index * WORD;
            let (first, last) = (from.max(start), end.min(start + WORD));
            (
                self.word(start as u64),
                first - from,
                first - start..last - start,
            )
        })
    }

    /// Copies bytes out. What a peer stored before is seen; what it stores meanwhile may be, word by word.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (word, at, part) in self.words(offset, into.len()) {
            let bytes = word.load(Ordering::Acquire).to_le_bytes();
            into[at..at + part.len()].copy_from_slice(&bytes[part]);
        }
    }

    /// Replaces bytes.
    pub fn write(&self, offset: u64, from: &[u8]) {
        for (word, at, part) in self.words(offset, from.len()) {
            let new = &from[at..at + part.len()];
            match <[u8; WORD]>::try_from(new) {
                Ok(whole) => word.store(u64::from_le_bytes(whole), Ordering::Release),
                Err(_) => changed(word, |bytes| bytes[part.clone()].copy_from_slice(new)),
            }
        }
    }

    /// Changes bytes from what they are, word by word. `change` is asked again for a word that a peer changed meanwhile.
    pub fn update(&self, offset: u64, len: usize, change: &mut dyn FnMut(usize, &mut [u8])) {
        for (word, at, part) in self.words(offset, len) {
            changed(word, |bytes| change(at, &mut bytes[part.clone()]));
        }
    }
}

fn changed(word: &AtomicU64, mut change: impl FnMut(&mut [u8; WORD])) {
    let mut before = word.load(Ordering::Acquire);
    loop {
        let mut bytes = before.to_le_bytes();
        change(&mut bytes);
        let after = u64::from_le_bytes(bytes);
        match word.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => before = now,
        }
    }
}

/// Another file descriptor of that memory, to hand to peers.
///
/// # Errors
/// [`Error::TooLarge`] if there is none left.
pub(crate) fn another(fd: &OwnedFd) -> Result<OwnedFd, Error> {
    fd.try_clone().map_err(|error| Error::TooLarge {
        what: format!("a file descriptor for memory that processes share: {error}"),
        help: "allow more of them: `ulimit -n` says how many there may be".into(),
    })
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: exactly this was mapped, and nothing borrows it any more. If the system refuses, it stays mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_one_memory_byte_by_byte() {
        let (one, fd) = Segment::create("test", 4097).expect("made");
        let other = Segment::of(&fd, 4104).expect("mapped");
        one.write(3, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        let mut read = [0; 16];
        other.read(2, &mut read);
        assert_eq!(read, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0]);
        other.update(5, 6, &mut |at, bytes| {
            bytes
                .iter_mut()
                .enumerate()
                .for_each(|(i, byte)| *byte = (at + i) as u8 + 100);
        });
        one.read(2, &mut read);
        assert_eq!(
            read,
            [
                0, 1, 2, 100, 101, 102, 103, 104, 105, 9, 10, 11, 12, 13, 14, 0
            ]
        );
        one.clear();
        other.read(2, &mut read);
        assert_eq!(read, [0; 16]);
        assert!(ftruncate(&fd, 8).is_err(), "nobody takes it away");
        assert!(Segment::of(&fd, 8192).is_err(), "it is shorter");
    }

    #[test]
    fn no_change_is_lost_between_threads() {
        let (memory, _) = Segment::create("test", 64).expect("made");
        std::thread::scope(|scope| {
            for byte in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        memory.update(8 + byte * 2, 2, &mut |_, place| {
                            let sum = u16::from_le_bytes([place[0], place[1]]) + 1;
                            place.copy_from_slice(&sum.to_le_bytes());
                        });
                    }
                });
            }
        });
        let mut sums = [0; 8];
        memory.read(8, &mut sums);
        assert_eq!(sums, [0x10, 0x27, 0x10, 0x27, 0x10, 0x27, 0x10, 0x27]);
    }
}
