//! Admission to a job: a process proves that it knows the secret, by a key that both sides then have
//! ([`exchange`](super::exchange)).
//! A process that listens looks at all that knock at once, so nobody at the door delays the others.

use super::exchange::{Exchange, Key, Side};
use super::secret::{BYTES, Secret, random};
use super::wire::{PAUSE, Wire};
use super::{Deadline, absent, failed};
use crate::error::Error;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The first bytes of a challenge.
const GREETING: &[u8; 8] = b"cntrflw2";
/// Bytes of a challenge: a greeting, the connection's random number, and the host's half of the exchange.
const CHALLENGE: usize = GREETING.len() + 2 * BYTES;
/// A rank, its world, the guest's half and a proof.
const ANSWER: usize = 8 + 2 * BYTES;
/// A word and a proof.
const WELCOME: usize = 1 + BYTES;
/// Time that somebody may stand at the door. Who needs longer comes again.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number that may stand there. One more comes in only once the first has had its time, and that one has to go.
const STANDING: usize = 256;
const STAY: Duration = Duration::from_millis(100);
/// Time for which a job that cannot begin tells those who come why.
const LINGER: Duration = Duration::from_secs(1);

/// Socket at which others knock.
pub(crate) trait Listen {
    /// A connection.
    type Stream: Read + Write;

    /// The next one, which does not block. [`ErrorKind::WouldBlock`] if there is none.
    fn accept(&self) -> io::Result<Self::Stream>;
}

/// A rank of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub rank: u32,
    pub world: u32,
}

impl Place {
    fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..].copy_from_slice(&self.world.to_le_bytes());
        bytes
    }

    fn of(bytes: &[u8; 8]) -> Place {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Place {
            rank: word(0),
            world: word(4),
        }
    }
}

/// Answer to who knocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Word {
    Welcome = 0,
    Unknown = 1,
    Taken = 2,
    OtherWorld = 3,
}

impl Word {
    fn of(byte: u8) -> Option<Word> {
        let all = [Word::Welcome, Word::Unknown, Word::Taken, Word::OtherWorld];
        all.into_iter().find(|word| *word as u8 == byte)
    }
}

struct Standing<S> {
    wire: Wire<S>,
    nonce: [u8; BYTES],
    since: Instant,
}

/// Reason that a job cannot begin, until when that is said, and how many ranks there are at most, by what any of them
/// counts.
struct Cause {
    error: Error,
    until: Instant,
    world: u32,
}

/// Lets in those of the `wanted` ranks that know the secret, until all are here.
pub(crate) fn admit<L: Listen>(
    listener: &L,
    secret: &Secret,
    me: Place,
    wanted: &[u32],
    deadline: Deadline,
) -> Result<BTreeMap<u32, Wire<L::Stream>>, Error> {
    let mut inside = BTreeMap::new();
    let mut standing: VecDeque<Standing<L::Stream>> = VecDeque::new();
    let (mut cause, mut told) = (None::<Cause>, BTreeSet::new());
    let exchange = Exchange::begin(Side::Host, secret)?;
    loop {
        match &cause {
            None if inside.len() == wanted.len() => return Ok(inside),
            // Rank 0 needs no telling.
            Some(cause)
                if told.len() + 1 >= cause.world as usize || Instant::now() > cause.until =>
            {
                break;
            }
            _ => {}
        }
        let mut idle = true;
        if standing.len() == STANDING
            && standing
                .front()
                .is_some_and(|first| first.since.elapsed() > STAY)
        {
            standing.pop_front();
        }
        // One at a time: however many knock, those at the door are looked at in between.
        if standing.len() < STANDING
            && let Ok(stream) = listener.accept()
        {
            idle = false;
            standing.extend(greeted(stream, &exchange)?);
        }
        for _ in 0..standing.len() {
            let Some(mut one) = standing.pop_front() else {
                break;
            };
            match one.wire.take::<ANSWER>() {
                Ok(Some(answer)) => {
                    idle = false;
                    let free = |rank| wanted.contains(&rank) && !inside.contains_key(&rank);
                    match judged(one, &exchange, &answer, me, free) {
                        Judged::In(rank, wire) => drop(inside.insert(rank, wire)),
                        Judged::OtherWorld(place) => {
                            told.insert(place.rank);
                            cause.get_or_insert_with(|| Cause {
                                error: other_world(place, me),
                                until: Instant::now() + LINGER,
                                world: me.world.max(place.world),
                            });
                        }
                        Judged::Out => {}
                    }
                }
                Ok(None) if one.since.elapsed() < PATIENCE => standing.push_back(one),
                Ok(None) | Err(_) => {}
            }
        }
        if let Some(cause) = &cause {
            tell(&mut inside, &mut told, &cause.error);
        } else if deadline.is_over() {
            let missing = wanted.iter().filter(|rank| !inside.contains_key(rank));
            let missing: Vec<u32> = missing.copied().collect();
            let error = absent(&missing, "join", deadline.limit);
            tell(&mut inside, &mut told, &error);
            return Err(error);
        }
        if idle {
            sleep(PAUSE);
        }
    }
    cause.map_or(Ok(inside), |cause| Err(cause.error))
}

/// Tells those inside why the job does not begin, each once. Who no longer listens has its own limit.
fn tell<S: Read + Write>(
    inside: &mut BTreeMap<u32, Wire<S>>,
    told: &mut BTreeSet<u32>,
    error: &Error,
) {
    let soon = Instant::now() + Duration::from_millis(100);
    for (rank, wire) in inside {
        if told.insert(*rank) {
            let _ = wire.send_message(&refusal(error), soon);
        }
    }
}

/// The message by which a rank tells another why it gives up. Others begin with a zero.
pub(crate) fn refusal(error: &Error) -> Vec<u8> {
    let text = error.to_string();
    [&[1], text.as_bytes()].concat()
}

/// Asks somebody who knocks.
fn greeted<S: Read + Write>(stream: S, exchange: &Exchange) -> Result<Option<Standing<S>>, Error> {
    let mut one = Standing {
        wire: Wire::new(stream)?,
        nonce: random()?,
        since: Instant::now(),
    };
    let challenge = [&GREETING[..], &one.nonce, &exchange.public].concat();
    // A new connection has room for it.
    let sent = one.wire.send(&challenge, one.since);
    Ok(sent.is_ok().then_some(one))
}

/// Judgement on somebody who answered.
enum Judged<S> {
    In(u32, Wire<S>),
    OtherWorld(Place),
    Out,
}

fn judged<S: Read + Write>(
    one: Standing<S>,
    exchange: &Exchange,
    answer: &[u8; ANSWER],
    me: Place,
    free: impl Fn(u32) -> bool,
) -> Judged<S> {
    let Standing {
        mut wire, nonce, ..
    } = one;
    let mut who = [0; 8];
    who.copy_from_slice(&answer[..8]);
    let (theirs, proof) = answer[8..].split_at(BYTES);
    let key = exchange
        .finish(&nonce, theirs, &who)
        .filter(|key| proves(key, Side::Guest, &[], proof));
    let place = Place::of(&who);
    let word = match key {
        None => Word::Unknown,
        Some(_) if place.world != me.world => Word::OtherWorld,
        Some(_) if !free(place.rank) => Word::Taken,
        Some(_) => Word::Welcome,
    };
    let back = match &key {
        Some(key) => *key.proof(Side::Host, &[word as u8]).as_bytes(),
        // Who does not know the secret gets nothing that is made of it.
        None => [0; BYTES],
    };
    let told = [&[word as u8], &back[..]].concat();
    let sent = wire.send(&told, Instant::now() + Duration::from_millis(50));
    match (word, key) {
        (Word::OtherWorld, _) => Judged::OtherWorld(place),
        (Word::Welcome, Some(key)) if sent.is_ok() => {
            let wire = wire.sealed(key.sends(Side::Host), key.sends(Side::Guest));
            Judged::In(place.rank, wire)
        }
        _ => Judged::Out,
    }
}

/// True if that is a side's proof. Hashes are compared in constant time.
fn proves(key: &Key, side: Side, says: &[u8], proof: &[u8]) -> bool {
    blake3::Hash::from_slice(proof).is_ok_and(|proof| proof == key.proof(side, says))
}

fn other_world(theirs: Place, ours: Place) -> Error {
    failed(
        format!(
            "rank {} says that there are {} ranks, and rank {} that there are {}",
            theirs.rank, theirs.world, ours.rank, ours.world
        ),
        "start all ranks with one command of the launcher",
    )
}

/// Reason that somebody was not let in.
enum Refused {
    /// A newcomer may try again, and it is usual that nobody is there so far.
    NotYet(String),
    /// A newcomer may try again, though something else is wrong.
    Hindered(String),
    /// The other side does not know the secret, or this one does not. It may come again: it may have met another job.
    Unknown,
    Never(Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Refused::NotYet(text),
            _ => Refused::Hindered(text),
        }
    }
}

/// Joins the process that listens. `open` connects, and says by which secret: it is asked again until the limit.
pub(crate) fn knock<S: Read + Write>(
    mut open: impl FnMut(Instant) -> io::Result<(S, Secret)>,
    me: Place,
    host: u32,
    deadline: Deadline,
) -> Result<Wire<S>, Error> {
    /// Between two tries.
    const REST: Duration = Duration::from_millis(20);
    let (mut unknown, mut hindered) = (None, None);
    loop {
        let tried = match open(deadline.until) {
            Ok((stream, secret)) => {
                let patience = deadline.until.min(Instant::now() + PATIENCE);
                Wire::new(stream)
                    .map_err(Refused::Never)
                    .and_then(|wire| answered(wire, &secret, me, host, patience))
            }
            Err(error) => Err(error.into()),
        };
        let why = match tried {
            Ok(wire) => return Ok(wire),
            Err(Refused::Never(error)) => return Err(error),
            Err(Refused::NotYet(why)) => why,
            Err(Refused::Hindered(why)) => hindered.insert(why).clone(),
            Err(Refused::Unknown) => {
                const WHY: &str = "it does not know this job's secret, or this process does not";
                unknown.insert(WHY).to_string()
            }
        };
        if deadline.is_over() {
            let why = unknown.or(hindered.as_deref()).unwrap_or(&why);
            return Err(failed(
                format!(
                    "rank {} did not reach rank {host} within {:?}: {why}",
                    me.rank, deadline.limit
                ),
                "see whether that rank's process started, and what it said; UB_TIMEOUT (seconds) sets the limit",
            ));
        }
        sleep(REST);
    }
}

/// Waits a little for the next bytes.
fn soon<S: Read + Write, const BYTES: usize>(
    wire: &mut Wire<S>,
    until: Instant,
) -> io::Result<[u8; BYTES]> {
    loop {
        if let Some(bytes) = wire.take()? {
            return Ok(bytes);
        }
        if Instant::now() > until {
            return Err(ErrorKind::TimedOut.into());
        }
        sleep(PAUSE);
    }
}

fn answered<S: Read + Write>(
    mut wire: Wire<S>,
    secret: &Secret,
    me: Place,
    host: u32,
    patience: Instant,
) -> Result<Wire<S>, Refused> {
    let challenge: [u8; CHALLENGE] = soon(&mut wire, patience)?;
    let (greeting, rest) = challenge.split_at(GREETING.len());
    if greeting != GREETING {
        return Err(Refused::NotYet("something else listens there".into()));
    }
    let (nonce, theirs) = rest.split_at(BYTES);
    let exchange = Exchange::begin(Side::Guest, secret).map_err(Refused::Never)?;
    let who = me.bytes();
    let Some(key) = exchange.finish(nonce, theirs, &who) else {
        return Err(Refused::NotYet("something else listens there".into()));
    };
    let proof = key.proof(Side::Guest, &[]);
    let answer = [&who[..], &exchange.public, proof.as_bytes()].concat();
    wire.send(&answer, patience)?;
    let welcome: [u8; WELCOME] = soon(&mut wire, patience)?;
    let (said, proof) = welcome.split_at(1);
    match (Word::of(said[0]), proves(&key, Side::Host, said, proof)) {
        (Some(Word::Welcome), true) => {
            Ok(wire.sealed(key.sends(Side::Guest), key.sends(Side::Host)))
        }
        (Some(Word::Taken), true) => Err(Refused::Never(failed(
            format!(
                "rank {} of this job is there already, or was not asked for",
                me.rank
            ),
            "give each job a name of its own (UB_JOB), and each of its processes a rank of its own",
        ))),
        (Some(Word::OtherWorld), true) => Err(Refused::Never(failed(
            format!(
                "rank {host} counts another number of ranks than {}",
                me.world
            ),
            "start all ranks with one command of the launcher",
        ))),
        _ => Err(Refused::Unknown),
    }
}
