//! Connections between all processes of a communicator, over which they exchange small messages and file descriptors.
//! They stay open as signs of life: the system closes those of a process that ends.

use super::peer::user_of;
use crate::error::Error;
use crate::rendezvous::door::{Listen, Place, admit, knock};
use crate::rendezvous::wire::{PAUSE, Wire};
use crate::rendezvous::{Deadline, Rendezvous, Secret, absent, failed, random};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with,
};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::sleep;

/// The longest message, in bytes.
const LONGEST: usize = 1 << 20;
/// The most file descriptors of a message.
const MOST_FDS: usize = 4;
/// Bytes of a random number.
const BYTES: usize = 32;
/// Number that nobody draws in place of two of them.
const NONE: [u8; 2 * BYTES] = [0; 2 * BYTES];

/// Message of a rank to all others, and file descriptors that come with it.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub text: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// The connection to a rank is lost.
#[derive(Debug)]
pub(crate) struct Lost {
    pub rank: u32,
    pub why: io::Error,
}

impl Lost {
    /// True if the peer closed it. Otherwise this process could not use it.
    pub fn is_closed(&self) -> bool {
        matches!(
            self.why.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        )
    }
}

/// Outcome of a send. Too little memory, and too many file descriptors that are on their way, pass.
fn sent(result: Result<usize, Errno>) -> io::Result<usize> {
    result.map_err(|why| match why {
        Errno::NOBUFS | Errno::TOOMANYREFS => ErrorKind::WouldBlock.into(),
        why => why.into(),
    })
}

/// A socket, the file descriptors that came by it, and those that go with the next bytes.
#[derive(Debug)]
struct Post {
    socket: UnixStream,
    came: Vec<OwnedFd>,
    going: Option<Arc<[OwnedFd]>>,
}

impl Post {
    fn on(socket: UnixStream) -> io::Result<Post> {
        socket.set_nonblocking(true)?;
        Ok(Post {
            socket,
            came: Vec::new(),
            going: None,
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
                self.came.extend(fds);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            // This process had no room for some: of those that came, nobody knows which they are.
            self.came.clear();
        }
        if self.came.len() > MOST_FDS {
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = match &self.going {
            Some(fds) => fds.iter().map(AsFd::as_fd).collect(),
            None => Vec::new(),
        };
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let bytes = [IoSlice::new(bytes)];
        let bytes = sent(sendmsg(
            &self.socket,
            &bytes,
            &mut control,
            SendFlags::NOSIGNAL,
        ))?;
        self.going = None;
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Socket at which peers knock. Only processes of this user are asked for more.
struct Door(UnixListener);

impl Listen for Door {
    type Stream = Post;

    fn accept(&self) -> io::Result<Post> {
        let (socket, _) = self.0.accept()?;
        if user_of(&socket)? != rustix::process::geteuid().as_raw() {
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

/// Message of a rank to the others before there are connections: its version, where it listens, and what proves to it
/// that somebody was told this. The rendezvous carries it as it is. Who reads along there learns nothing of use on
/// another host, or as another user: the socket is this host's, and the system says whose process connects.
struct Card {
    version: String,
    name: [u8; BYTES],
    token: [u8; BYTES],
}

impl Card {
    fn bytes(&self) -> Vec<u8> {
        [&self.name[..], &self.token, self.version.as_bytes()].concat()
    }

    fn of(bytes: &[u8]) -> Option<Card> {
        let (name, rest) = bytes.split_first_chunk()?;
        let (token, version) = rest.split_first_chunk()?;
        Some(Card {
            version: String::from_utf8_lossy(version).into_owned(),
            name: *name,
            token: *token,
        })
    }

    /// The socket's name, which no file has.
    fn socket(&self) -> String {
        let hex = self.name[..16].iter().map(|byte| format!("{byte:02x}"));
        format!("counterflow-{}", hex.collect::<String>())
    }

    fn listen(&self) -> io::Result<Door> {
        let address = SocketAddr::from_abstract_name(self.socket())?;
        let listener = UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        Ok(Door(listener))
    }

    /// Connects, or says that too many others just do.
    fn connect(&self) -> io::Result<Post> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(
            &socket,
            &SocketAddrUnix::new_abstract_name(self.socket().as_bytes())?,
        )?;
        Post::on(socket.into())
    }
}

/// Message of a rank that has no card: no random numbers, and why.
fn refusal(why: &Error) -> Vec<u8> {
    [&NONE[..], why.to_string().as_bytes()].concat()
}

fn refused(said: &[u8]) -> Option<String> {
    let text = said.strip_prefix(&NONE)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

impl Links {
    /// Connects all ranks of a rendezvous: those of one user on one host, of one version.
    pub fn make(ranks: &dyn Rendezvous, deadline: Deadline) -> Result<Links, Error> {
        let place = Place {
            rank: ranks.rank(),
            world: ranks.world(),
        };
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let ready = || {
            let mine = Card {
                version: format!(
                    "counterflow {} on host {}",
                    env!("CARGO_PKG_VERSION"),
                    boot.trim()
                ),
                name: random()?,
                token: random()?,
            };
            let door = mine.listen().map_err(|error| {
                failed(
                    format!("rank {} cannot listen on a socket: {error}", place.rank),
                    "free file descriptors: `ulimit -n` says how many there are",
                )
            })?;
            Ok((mine, door))
        };
        // Who cannot go on says why, and nobody waits for it.
        let ready = ready();
        let said = match &ready {
            Ok((mine, _)) => mine.bytes(),
            Err(error) => refusal(error),
        };
        let cards = ranks.all_gather(&said, deadline.left())?;
        let (mine, door) = ready?;
        let cards = cards.iter().zip(0..).map(|(bytes, rank)| {
            if let Some(why) = refused(bytes) {
                return Err(failed(
                    format!("rank {rank} ended early: {why}"),
                    "see what that rank's process said",
                ));
            }
            Card::of(bytes).ok_or_else(|| {
                failed(
                    format!("rank {rank} said no address: it is another version"),
                    "see what that rank's process said; run one version of counterflow in all processes",
                )
            })
        });
        let cards = cards.collect::<Result<Vec<Card>, Error>>()?;
        if cards.len() != place.world as usize {
            return Err(failed(
                format!(
                    "{} ranks answered, and there are {}",
                    cards.len(),
                    place.world
                ),
                "correct the rendezvous",
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
            let open = |_| Ok((card.connect()?, Secret::of(&card.token)));
            others.insert(rank, knock(open, place, rank, deadline)?);
        }
        let wanted: Vec<u32> = (place.rank + 1..place.world).collect();
        let token = Secret::of(&mine.token);
        others.extend(admit(&door, &token, place, &wanted, deadline)?);
        Ok(Links { place, others })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.place.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> u32 {
        self.place.world
    }

    /// The sockets, each with its peer, to see whether they are closed.
    pub fn sockets(&self) -> io::Result<Vec<(u32, UnixStream)>> {
        let each = self.others.iter();
        each.map(|(rank, wire)| Ok((*rank, wire.stream.socket.try_clone()?)))
            .collect()
    }

    /// Lets the peers see that nothing more comes, whoever still looks at the sockets here.
    pub fn close(&self) {
        for wire in self.others.values() {
            // One that is closed already says as much.
            let _ = wire.stream.socket.shutdown(Shutdown::Write);
        }
    }

    /// Begins to send something to all others. [`Links::look`] sends it, and finds what they send.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for what the others would not take.
    pub fn post(&mut self, text: &[u8], fds: Vec<OwnedFd>) -> Result<(), Error> {
        if text.len() > LONGEST || fds.len() > MOST_FDS {
            return Err(Error::TooLarge {
                what: format!("a message of {} bytes to the other ranks", text.len()),
                help: "drop buffers in the same order on every rank, and fewer at once".into(),
            });
        }
        let fds: Arc<[OwnedFd]> = fds.into();
        for wire in self.others.values_mut() {
            wire.stream.going = Some(fds.clone());
            wire.post(text);
        }
        Ok(())
    }

    /// Sends what can be sent and takes what has come, one parcel of each rank. Never waits. True once every other rank
    /// has all of this one's, and `came` has one of each.
    pub fn look(&mut self, came: &mut BTreeMap<u32, Parcel>) -> Result<bool, Lost> {
        let (mut all, mut lost) = (true, None);
        for (rank, wire) in &mut self.others {
            let mut look = || {
                let sent = wire.flush();
                if !came.contains_key(rank)
                    && let Some(text) = wire.message(LONGEST)?
                {
                    let fds = std::mem::take(&mut wire.stream.came);
                    came.insert(*rank, Parcel { text, fds });
                }
                Ok(sent? && came.contains_key(rank))
            };
            match look() {
                Ok(done) => all &= done,
                Err(why) => lost = lost.or(Some(Lost { rank: *rank, why })),
            }
        }
        lost.map_or(Ok(all), Err)
    }

    /// Every rank's parcel, in the order of the ranks, before anything else is known of them. This rank's own has its
    /// text alone.
    pub fn share(
        &mut self,
        text: Vec<u8>,
        fds: Vec<OwnedFd>,
        deadline: Deadline,
    ) -> Result<Vec<Parcel>, Error> {
        self.post(&text, fds)?;
        let mut came = BTreeMap::new();
        loop {
            let done = self.look(&mut came).map_err(|lost| match lost.is_closed() {
                true => failed(
                    format!("rank {} is gone: {}", lost.rank, lost.why),
                    "see what that rank's process said",
                ),
                false => failed(
                    format!(
                        "rank {} cannot use its connection to rank {}: {}",
                        self.place.rank, lost.rank, lost.why
                    ),
                    "free memory or file descriptors, as that says; run one version of counterflow in all processes",
                ),
            })?;
            if done {
                let fds = Vec::new();
                came.insert(self.place.rank, Parcel { text, fds });
                return Ok(came.into_values().collect());
            }
            if deadline.is_over() {
                let missing = self.others.keys().filter(|rank| !came.contains_key(rank));
                let missing: Vec<u32> = missing.copied().collect();
                return Err(absent(&missing, "share its memory", deadline.limit));
            }
            sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::Threads;
    use crate::shared::Segment;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_rank_that_cannot_go_on_is_named_with_the_cause_at_once() {
        std::thread::scope(|scope| {
            for seat in Threads::of(3) {
                scope.spawn(move || {
                    if seat.rank() == 1 {
                        let why = failed("the system gives no random numbers", "");
                        seat.all_gather(&refusal(&why), LONG).expect("gathered");
                        return;
                    }
                    let told = Links::make(&seat, Deadline::after(LONG)).expect_err("told");
                    let wanted = "rank 1 ended early: the system gives no random numbers";
                    assert_eq!(told.to_string(), wanted);
                });
            }
        });
    }

    /// Sends and takes until all is done.
    fn exchanged(links: &mut Links, text: &[u8]) -> Result<BTreeMap<u32, Parcel>, Lost> {
        links.post(text, Vec::new()).expect("short");
        let mut came = BTreeMap::new();
        while !links.look(&mut came)? {
            sleep(PAUSE);
        }
        Ok(came)
    }

    #[test]
    fn all_ranks_exchange_messages_and_memory_and_see_who_is_gone() {
        std::thread::scope(|scope| {
            for rank in Threads::of(3) {
                scope.spawn(move || {
                    let deadline = Deadline::after(LONG);
                    let mut links = Links::make(&rank, deadline).expect("connected");
                    let me = links.rank();
                    let (memory, own) = Segment::create("test", 64).expect("made");
                    memory.write(0, &[me as u8 + 1]);
                    let all = links.share(vec![me as u8], vec![own], deadline);
                    for (peer, mut parcel) in all.expect("shared").into_iter().enumerate() {
                        assert_eq!(parcel.text, [peer as u8]);
                        if peer == me as usize {
                            assert!(parcel.fds.is_empty());
                            continue;
                        }
                        let theirs = Segment::of(&parcel.fds.remove(0), 64).expect("memory");
                        let mut first = [0];
                        theirs.read(0, &mut first);
                        assert_eq!((usize::from(first[0]), parcel.fds.len()), (peer + 1, 0));
                    }
                    // More than a socket holds, so nobody can send all before the others read.
                    let text = vec![me as u8; LONGEST];
                    let all = exchanged(&mut links, &text).expect("exchanged");
                    for (peer, parcel) in all {
                        assert!(parcel.text == vec![peer as u8; LONGEST]);
                    }
                    assert!(links.post(&vec![0; LONGEST + 1], Vec::new()).is_err());
                    if me > 0 {
                        let lost = exchanged(&mut links, &[]).expect_err("rank 0 is gone");
                        assert_eq!(lost.rank, 0);
                    }
                });
            }
        });
    }

    #[test]
    fn too_little_memory_for_a_message_passes() {
        let kind = |why| sent(Err(why)).expect_err("nothing sent").kind();
        assert_eq!(kind(Errno::NOBUFS), ErrorKind::WouldBlock);
        assert_eq!(kind(Errno::TOOMANYREFS), ErrorKind::WouldBlock);
        assert_eq!(kind(Errno::PIPE), ErrorKind::BrokenPipe);
        assert_eq!(sent(Ok(3)).expect("sent"), 3);
    }

    #[test]
    fn who_does_not_answer_the_door_delays_nobody_beyond_the_limit() {
        let card = Card {
            version: String::new(),
            name: random().expect("random"),
            token: random().expect("random"),
        };
        let _door = card.listen().expect("listens");
        let mut standing = Vec::new();
        let full = loop {
            match card.connect() {
                Ok(post) => standing.push(post),
                Err(why) => break why,
            }
            assert!(standing.len() < 1 << 16, "a queue without an end");
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let place = Place { rank: 1, world: 2 };
        let open = |_| Ok((card.connect()?, Secret::of(&card.token)));
        let deadline = Deadline::after(Duration::from_millis(200));
        let late = knock(open, place, 0, deadline).expect_err("nobody answers");
        assert!(late.to_string().contains("within 200ms"), "{late}");
    }
}
