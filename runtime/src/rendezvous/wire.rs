//! A connection that is read and written piece by piece, so that nobody at its other end can hold this one up.

use std::io::{self, ErrorKind, Read, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time between two looks at a connection on which nothing came.
pub(crate) const PAUSE: Duration = Duration::from_micros(100);

/// A connection that does not block, what came of the next message, and what is still to be sent.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    pub(crate) stream: S,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl<S: Read + Write> Wire<S> {
    /// On a stream that does not block.
    pub fn new(stream: S) -> Wire<S> {
        Wire {
            stream,
            incoming: Vec::new(),
            outgoing: Vec::new(),
        }
    }

    /// Reads until so many bytes are there, and no more: what comes later may come with something else. False if they
    /// have not come yet.
    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        let mut piece = [0; 4096];
        while self.incoming.len() < wanted {
            let room = (wanted - self.incoming.len()).min(piece.len());
            match self.stream.read(&mut piece[..room]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.incoming.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The next bytes, if they have come.
    pub fn take<const BYTES: usize>(&mut self) -> io::Result<Option<[u8; BYTES]>> {
        if !self.fill(BYTES)? {
            return Ok(None);
        }
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(&self.incoming);
        self.incoming.clear();
        Ok(Some(bytes))
    }

    /// The next message, if it has come, with at most `most` bytes.
    pub fn message(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        const LENGTH: usize = 4;
        if !self.fill(LENGTH)? {
            return Ok(None);
        }
        let mut length = [0; LENGTH];
        length.copy_from_slice(&self.incoming[..LENGTH]);
        let length = u32::from_le_bytes(length) as usize;
        if length > most {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("a message of {length} bytes, above {most}"),
            ));
        }
        if !self.fill(LENGTH + length)? {
            return Ok(None);
        }
        let message = self.incoming.split_off(LENGTH);
        self.incoming.clear();
        Ok(Some(message))
    }

    /// Writes what is still to be sent, as far as that does not wait. False if something is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        let mut sent = 0;
        let ended = loop {
            if sent == self.outgoing.len() {
                break Ok(true);
            }
            match self.stream.write(&self.outgoing[sent..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.outgoing.drain(..sent);
        ended
    }

    /// Writes all of these bytes.
    pub fn send(&mut self, bytes: &[u8], until: Instant) -> io::Result<()> {
        self.outgoing.extend_from_slice(bytes);
        while !self.flush()? {
            if Instant::now() > until {
                return Err(ErrorKind::TimedOut.into());
            }
            sleep(PAUSE);
        }
        Ok(())
    }

    /// Puts a message behind what is still to be sent.
    pub fn post(&mut self, message: &[u8]) {
        self.outgoing.extend(framed(message));
    }

    /// Writes a message.
    pub fn send_message(&mut self, message: &[u8], until: Instant) -> io::Result<()> {
        self.send(&framed(message), until)
    }
}

/// A message with its length before it.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u32).to_le_bytes();
    [&length[..], message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Wire<UnixStream>, Wire<UnixStream>) {
        let (one, other) = UnixStream::pair().expect("a pair");
        for end in [&one, &other] {
            end.set_nonblocking(true).expect("set");
        }
        (Wire::new(one), Wire::new(other))
    }

    #[test]
    fn messages_come_whole_and_one_by_one() {
        let (mut one, mut other) = pair();
        let until = Instant::now() + Duration::from_secs(10);
        assert_eq!(other.message(10).expect("open"), None);
        let both = [framed(b"first"), framed(b"second")].concat();
        one.send(&both[..7], until).expect("sent");
        assert_eq!(
            other.message(10).expect("open"),
            None,
            "half a message is none"
        );
        one.send(&both[7..], until).expect("sent");
        assert_eq!(other.message(10).expect("open"), Some(b"first".to_vec()));
        assert_eq!(other.message(10).expect("open"), Some(b"second".to_vec()));
        drop(one);
        assert!(other.message(10).is_err(), "closed");
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_comes() {
        let (mut one, mut other) = pair();
        let until = Instant::now() + Duration::from_secs(10);
        one.send(&u32::MAX.to_le_bytes(), until).expect("sent");
        let told = other.message(10).expect_err("too long").to_string();
        assert_eq!(told, "a message of 4294967295 bytes, above 10");
    }

    #[test]
    fn who_does_not_read_holds_nobody_up() {
        let (mut one, _other) = pair();
        let start = Instant::now();
        let late = one.send(&vec![0; 1 << 24], start + Duration::from_millis(50));
        assert_eq!(late.expect_err("full").kind(), ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
