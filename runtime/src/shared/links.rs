//! Connections between all processes of a communicator, over which they exchange small messages and file descriptors.
//! They stay open as signs of life: the system closes those of a process that ends.

use crate::error::Error;
use crate::rendezvous::door::{Listen, Place, admit, knock};
use crate::rendezvous::wire::{PAUSE, Wire, framed};
use crate::rendezvous::{Rendezvous, Secret, absent, failed, random};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest message, in bytes.
const LONGEST: usize = 1 << 20;
/// The most file descriptors of a message.
const MOST_FDS: usize = 4;
/// Bytes of a random number.
const BYTES: usize = 32;

/// A socket, and the file descriptors that came by it.
#[derive(Debug)]
struct Post {
    socket: UnixStream,
    fds: Vec<OwnedFd>,
}

impl Post {
    fn on(socket: UnixStream) -> io::Result<Post> {
        socket.set_nonblocking(true)?;
        Ok(Post {
            socket,
            fds: Vec::new(),
        })
    }
}

impl Read for Post {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(into)];
        let got = recvmsg(
            &self.socket,
            &mut into,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if self.fds.len() > MOST_FDS {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "too many file descriptors",
            ));
        }
        Ok(got.bytes)
    }
}

impl Write for Post {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Where peers knock. Only processes of this user are asked for more.
struct Door(UnixListener);

impl Listen for Door {
    type Stream = Post;

    fn accept(&self) -> io::Result<Post> {
        let (socket, _) = self.0.accept()?;
        if socket_peercred(&socket)?.uid != rustix::process::geteuid() {
            return Err(ErrorKind::PermissionDenied.into());
        }
        Post::on(socket)
    }
}

/// The connections of one rank to all others.
#[derive(Debug)]
pub(crate) struct Links {
    place: Place,
    others: BTreeMap<u32, Wire<Post>>,
}

/// What a rank tells the others before there are connections.
struct Card {
    version: String,
    name: [u8; BYTES],
    secret: [u8; BYTES],
}

impl Card {
    fn bytes(&self) -> Vec<u8> {
        [&self.name[..], &self.secret, self.version.as_bytes()].concat()
    }

    fn of(bytes: &[u8]) -> Option<Card> {
        let (name, rest) = bytes.split_first_chunk()?;
        let (secret, version) = rest.split_first_chunk()?;
        Some(Card {
            version: String::from_utf8_lossy(version).into_owned(),
            name: *name,
            secret: *secret,
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        let hex: String = self.name[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        SocketAddr::from_abstract_name(format!("counterflow-{hex}"))
    }
}

impl Links {
    /// Connects all ranks of a rendezvous: those of one user on one host, of one version.
    pub fn make(ranks: &dyn Rendezvous, limit: Duration) -> Result<Links, Error> {
        let place = Place {
            rank: ranks.rank(),
            world: ranks.world(),
        };
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mine = Card {
            version: format!(
                "counterflow {} on host {}",
                env!("CARGO_PKG_VERSION"),
                boot.trim()
            ),
            name: random()?,
            secret: random()?,
        };
        let listens = mine
            .address()
            .and_then(|address| UnixListener::bind_addr(&address));
        let listens = listens.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(Door(listener))
        });
        // Whoever cannot go on stays long enough for the others to hear of it by the rendezvous.
        let door = listens.map_err(|error| {
            failed(
                format!("rank {} cannot listen on a socket: {error}", place.rank),
                "free file descriptors: `ulimit -n` says how many there are",
            )
        })?;
        let cards = ranks.all_gather(&mine.bytes(), limit)?;
        let cards: Vec<Card> = cards.iter().filter_map(|bytes| Card::of(bytes)).collect();
        if cards.len() != place.world as usize {
            return Err(failed(
                "a rank sent something else than its address",
                "run one version of counterflow in all processes",
            ));
        }
        for (rank, card) in cards.iter().enumerate() {
            if card.version != mine.version {
                return Err(Error::Mismatch {
                    what: format!(
                        "rank {} is {}, and rank {rank} is {}",
                        place.rank, mine.version, card.version
                    ),
                    help: "run one version of counterflow in all processes, all on one host".into(),
                });
            }
        }
        let mut others = BTreeMap::new();
        for (rank, card) in (0..place.rank).zip(&cards) {
            let open = |_| {
                let socket = UnixStream::connect_addr(&card.address()?)?;
                Ok((Post::on(socket)?, Secret::of(&card.secret)))
            };
            others.insert(rank, knock(open, place, rank, limit)?);
        }
        let wanted: Vec<u32> = (place.rank + 1..place.world).collect();
        others.extend(admit(
            &door,
            &Secret::of(&mine.secret),
            place,
            &wanted,
            limit,
        )?);
        Ok(Links { place, others })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.place.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> u32 {
        self.place.world
    }

    /// The sockets, each with its peer, to see whether they are closed.
    pub fn sockets(&self) -> io::Result<Vec<(u32, UnixStream)>> {
        let each = self.others.iter();
        each.map(|(rank, wire)| Ok((*rank, wire.stream.socket.try_clone()?)))
            .collect()
    }

    /// Sends a message to all others. Gives the first that does not take it.
    pub fn tell(&mut self, message: &[u8], until: Instant) -> Result<(), (u32, io::Error)> {
        for (rank, wire) in &mut self.others {
            wire.send_message(message, until)
                .map_err(|why| (*rank, why))?;
        }
        Ok(())
    }

    /// The next message of a peer, if it has come.
    pub fn hear(&mut self, rank: u32) -> io::Result<Option<Vec<u8>>> {
        match self.others.get_mut(&rank) {
            Some(wire) => wire.message(LONGEST),
            None => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Every rank's file descriptors, in the order of the ranks; this one's are its own again.
    pub fn share(
        &mut self,
        mine: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<Vec<Vec<OwnedFd>>, Error> {
        let lost = |rank, why: io::Error| {
            failed(
                format!("rank {rank} is gone: {why}"),
                "see what that rank's process said",
            )
        };
        let until = Instant::now() + limit;
        let owned = |fd: &BorrowedFd<'_>| fd.try_clone_to_owned();
        let own = mine.iter().map(owned).collect::<io::Result<Vec<_>>>();
        let mut all = BTreeMap::new();
        all.insert(
            self.place.rank,
            own.map_err(|why| lost(self.place.rank, why))?,
        );
        for (rank, wire) in &mut self.others {
            sent(wire, mine, until).map_err(|why| lost(*rank, why))?;
        }
        while all.len() < self.place.world as usize {
            for (rank, wire) in &mut self.others {
                if !all.contains_key(rank)
                    && wire.message(0).map_err(|why| lost(*rank, why))?.is_some()
                {
                    all.insert(*rank, std::mem::take(&mut wire.stream.fds));
                }
            }
            if Instant::now() > until {
                let missing = self.others.keys().filter(|rank| !all.contains_key(rank));
                let missing: Vec<u32> = missing.copied().collect();
                return Err(absent(&missing, "share its memory", limit));
            }
            sleep(PAUSE);
        }
        Ok(all.into_values().collect())
    }
}

/// Sends file descriptors with an empty message.
fn sent(wire: &mut Wire<Post>, fds: &[BorrowedFd<'_>], until: Instant) -> io::Result<()> {
    let message = framed(&[]);
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let bytes = [IoSlice::new(&message)];
        match sendmsg(
            &wire.stream.socket,
            &bytes,
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => return wire.send(&message[sent..], until),
            Err(error) if Instant::now() > until => return Err(error.into()),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::Threads;
    use crate::shared::Segment;
    use std::os::fd::AsFd;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn all_ranks_exchange_messages_and_memory_and_see_who_is_gone() {
        std::thread::scope(|scope| {
            for rank in Threads::of(3) {
                scope.spawn(move || {
                    let mut links = Links::make(&rank, LONG).expect("connected");
                    let me = links.rank();
                    let memory = Segment::create("test", 64).expect("made");
                    memory.write(0, &[me as u8 + 1]);
                    let all = links.share(&[memory.fd().as_fd()], LONG).expect("shared");
                    for (peer, mut fds) in all.into_iter().enumerate() {
                        let theirs = Segment::of(fds.remove(0), 64).expect("memory");
                        let mut first = [0];
                        theirs.read(0, &mut first);
                        assert_eq!((usize::from(first[0]), fds.len()), (peer + 1, 0));
                    }
                    links
                        .tell(&[me as u8], Instant::now() + LONG)
                        .expect("told");
                    let mut wait = |peer| loop {
                        match links.hear(peer) {
                            Ok(None) => sleep(PAUSE),
                            other => return other,
                        }
                    };
                    for peer in (0..3).filter(|peer| *peer != me) {
                        assert_eq!(wait(peer).expect("open"), Some(vec![peer as u8]));
                    }
                    if me > 0 {
                        assert!(wait(0).is_err(), "rank 0 is gone");
                    }
                });
            }
        });
    }
}
