//! A connection that is read and written piece by piece, so that nobody at its other end can hold this one up.

use super::secret::random;
use crate::error::Error;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time between two looks at a connection on which nothing came.
pub(crate) const PAUSE: Duration = Duration::from_micros(100);

/// Bytes before a message that say its length.
const LENGTH: usize = 4;

/// Seal of the messages of one direction: a key that both ends have, and the number of the next message. A message
/// that is forged, changed, repeated, left out or sent back does not fit.
struct Seal {
    key: [u8; TAG],
    next: u64,
}

/// Bytes behind a message that prove who sent it.
const TAG: usize = blake3::OUT_LEN;

impl Seal {
    fn tag(&mut self, message: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.next.to_le_bytes()).update(message);
        self.next += 1;
        hasher.finalize()
    }
}

/// A connection that does not block, what came of the next message, and what is still to be sent.
pub(crate) struct Wire<S> {
    pub(crate) stream: S,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    sends: Seal,
    takes: Seal,
}

impl<S: fmt::Debug> fmt::Debug for Wire<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({:?})", self.stream)
    }
}

impl<S: Read + Write> Wire<S> {
    /// On a stream that does not block. Until it is [sealed](Wire::sealed), nobody else has the keys of its messages.
    pub fn new(stream: S) -> Result<Wire<S>, Error> {
        let seal = || {
            Ok::<_, Error>(Seal {
                key: random()?,
                next: 0,
            })
        };
        Ok(Wire {
            stream,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            sends: seal()?,
            takes: seal()?,
        })
    }

    /// Messages from now on, with the keys of both directions.
    pub fn sealed(self, sends: [u8; TAG], takes: [u8; TAG]) -> Wire<S> {
        let seal = |key| Seal { key, next: 0 };
        Wire {
            sends: seal(sends),
            takes: seal(takes),
            ..self
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
        if !self.fill(LENGTH + length + TAG)? {
            return Ok(None);
        }
        let tag = self.incoming.split_off(LENGTH + length);
        let message = self.incoming.split_off(LENGTH);
        self.incoming.clear();
        // Hashes are compared in constant time.
        match blake3::Hash::from_slice(&tag).is_ok_and(|tag| tag == self.takes.tag(&message)) {
            true => Ok(Some(message)),
            false => Err(io::Error::new(
                ErrorKind::InvalidData,
                "a message that this job's ranks did not send",
            )),
        }
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
        let message = self.framed(message);
        self.outgoing.extend(message);
    }

    /// Writes a message.
    pub fn send_message(&mut self, message: &[u8], until: Instant) -> io::Result<()> {
        let message = self.framed(message);
        self.send(&message, until)
    }

    /// A message with its length before it, and what proves who sent it behind.
    fn framed(&mut self, message: &[u8]) -> Vec<u8> {
        let length = (message.len() as u32).to_le_bytes();
        let tag = self.sends.tag(message);
        [&length[..], message, tag.as_bytes()].concat()
    }
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
        let wire = |end, sends, takes| Wire::new(end).expect("random numbers").sealed(sends, takes);
        (
            wire(one, [1; TAG], [2; TAG]),
            wire(other, [2; TAG], [1; TAG]),
        )
    }

    #[test]
    fn messages_come_whole_and_one_by_one() {
        let (mut one, mut other) = pair();
        let until = Instant::now() + Duration::from_secs(10);
        assert_eq!(other.message(10).expect("open"), None);
        let both = [one.framed(b"first"), one.framed(b"second")].concat();
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
    fn a_message_that_the_other_end_did_not_send_so_is_refused() {
        let until = Instant::now() + Duration::from_secs(10);
        // What somebody between both ends may do to three messages.
        type Attack = fn(Vec<Vec<u8>>) -> Vec<Vec<u8>>;
        let attacks: [(Attack, usize); 6] = [
            (|sent| sent, 3),
            (
                |mut sent| {
                    sent[0][LENGTH] ^= 1;
                    sent
                },
                0,
            ),
            (
                |mut sent| {
                    *sent[1].last_mut().expect("a tag") ^= 1;
                    sent
                },
                1,
            ),
            (|sent| vec![sent[0].clone(), sent[0].clone()], 1),
            (|sent| vec![sent[0].clone(), sent[2].clone()], 1),
            (|sent| vec![sent[1].clone(), sent[0].clone()], 0),
        ];
        for (attack, right) in attacks {
            let (mut one, mut other) = pair();
            let sent = [b"a", b"b", b"c"].map(|text| one.framed(text)).to_vec();
            for bytes in attack(sent) {
                one.send(&bytes, until).expect("sent");
            }
            for _ in 0..right {
                assert!(other.message(10).expect("right").is_some());
            }
            if right < 3 {
                let told = other.message(10).expect_err("forged").to_string();
                assert_eq!(told, "a message that this job's ranks did not send");
            }
        }
        // An end's own message, sent back.
        let (mut one, mut other) = pair();
        let own = other.framed(b"a");
        one.send(&own, until).expect("sent");
        assert!(other.message(10).is_err());
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
