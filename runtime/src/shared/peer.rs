//! Identity of the process at the other end of a socket.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Linux's numbers for the question.
const SOL_SOCKET: c_int = 1;
const SO_PEERCRED: c_int = 17;

/// Facts that the system tells of a process. Its number is 0 if this one does not see it, as in another container.
#[derive(Default)]
#[repr(C)]
struct Peer {
    pid: i32,
    uid: u32,
    gid: u32,
}

unsafe extern "C" {
    fn getsockopt(fd: c_int, level: c_int, name: c_int, to: *mut c_void, len: *mut u32) -> c_int;
}

/// The user whose process made the connection, as this process sees users. Its process may have no number here, which
/// rustix's own answer cannot say.
pub(super) fn user_of(socket: &UnixStream) -> io::Result<u32> {
    let mut peer = Peer::default();
    let mut bytes = size_of::<Peer>() as u32;
    let place = (&raw mut peer).cast();
    // SAFETY: the socket is open, and the place is as long as is said; every pattern of bits is a value of it.
    let answer = unsafe {
        getsockopt(
            socket.as_raw_fd(),
            SOL_SOCKET,
            SO_PEERCRED,
            place,
            &raw mut bytes,
        )
    };
    match answer {
        0 if bytes as usize == size_of::<Peer>() => Ok(peer.uid),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_of_this_process_is_of_this_user() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(user_of(&one).expect("asked"), own);
    }
}
