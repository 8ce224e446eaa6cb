//! Ranks that are processes, and gather at rank 0 by TCP.

use super::door::{Listen, Place, admit, knock, refusal};
use super::secret::Secret;
use super::wire::{PAUSE, Wire};
use super::{Deadline, LONGEST, Rendezvous, absent, failed, must_be_in, must_fit};
use crate::error::Error;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time beyond the limit that a rank waits for what rank 0 has to say of those who did not come.
const GRACE: Duration = Duration::from_secs(1);

impl Listen for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self)?;
        ready(stream)
    }
}

/// Messages are small, and somebody waits for each.
fn ready(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A rank that is a process: rank 0 listens, and the others connect to it.
///
/// ```no_run
/// use counterflow_runtime::rendezvous::{Rendezvous, Secret, Tcp};
/// use std::{net::SocketAddr, path::Path, time::Duration};
/// # let rank = 0;
/// let secret = Secret::from_file(Path::new("secret"))?;
/// let (first, limit) = (SocketAddr::from(([10, 0, 0, 1], 4242)), Duration::from_secs(60));
/// let job = Tcp::join(rank, 8, first, &secret, limit)?;
/// job.barrier(limit)?;
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Tcp {
    place: Place,
    side: Mutex<Side>,
}

#[derive(Debug)]
enum Side {
    /// Rank 0, with the others.
    First(BTreeMap<u32, Wire<TcpStream>>),
    Other(Wire<TcpStream>),
    /// Something went wrong before.
    Ended,
}

impl Tcp {
    /// Joins a job of `world` ranks. Rank 0 listens at `address`, on port 0 at none in particular; the others connect to
    /// it. Each proves to the other that it knows the secret. Rank 0 listens no longer once all are there.
    ///
    /// # Errors
    /// [`Error::Usage`] for a rank outside the world, more than 128 ranks, and a secret with 1 to 15 bytes, or with none where
    /// the address is not this host's own (127.0.0.1); [`Error::Rendezvous`] with the ranks that did not come within `limit`,
    /// or if rank 0 cannot listen there.
    pub fn join(
        rank: u32,
        world: u32,
        address: SocketAddr,
        secret: &Secret,
        limit: Duration,
    ) -> Result<Tcp, Error> {
        must_be_in(rank, world)?;
        secret.must_be_long(address.ip().is_loopback())?;
        let place = Place { rank, world };
        if rank == 0 {
            let listener = TcpListener::bind(address).map_err(|error| {
                failed(
                    format!("rank 0 cannot listen at {address}: {error}"),
                    "name a free port of this machine; two jobs cannot share one",
                )
            })?;
            return Tcp::lead(&listener, world, secret, limit);
        }
        Tcp::follow(place, limit, |until| {
            Ok((connect(address, until)?, secret.clone()))
        })
    }

    /// Rank 0, which listens there.
    pub(super) fn lead(
        listener: &TcpListener,
        world: u32,
        secret: &Secret,
        limit: Duration,
    ) -> Result<Tcp, Error> {
        let place = Place { rank: 0, world };
        let listens = listener.set_nonblocking(true);
        listens.map_err(|error| failed(format!("rank 0 cannot listen: {error}"), "try again"))?;
        let wanted: Vec<u32> = (1..world).collect();
        let deadline = Deadline::after(limit);
        let others = admit(listener, secret, place, &wanted, deadline)?;
        Ok(Tcp {
            place,
            side: Mutex::new(Side::First(others)),
        })
    }

    /// Another rank, which connects by `open` until it is let in.
    pub(super) fn follow(
        place: Place,
        limit: Duration,
        open: impl FnMut(Instant) -> io::Result<(TcpStream, Secret)>,
    ) -> Result<Tcp, Error> {
        let wire = knock(open, place, 0, Deadline::after(limit))?;
        Ok(Tcp {
            place,
            side: Mutex::new(Side::Other(wire)),
        })
    }
}

/// Connects by then.
pub(super) fn connect(address: SocketAddr, until: Instant) -> io::Result<TcpStream> {
    let left = until.saturating_duration_since(Instant::now());
    let left = left.clamp(Duration::from_millis(10), Duration::from_secs(2));
    TcpStream::connect_timeout(&address, left).and_then(ready)
}

/// A message that is none of those that a rank sends.
fn garbage(from: u32) -> Error {
    failed(
        format!("rank {from} sent something that is no message of a rendezvous"),
        "run one version of counterflow in all processes",
    )
}

fn lost(rank: u32, why: &io::Error) -> Error {
    failed(
        format!("the connection to rank {rank} is gone: {why}"),
        "see what that rank's process said",
    )
}

/// Packs what all ranks gave into one message.
fn packed(all: &BTreeMap<u32, Vec<u8>>) -> Vec<u8> {
    let mut packed = vec![0];
    for message in all.values() {
        packed.extend((message.len() as u32).to_le_bytes());
        packed.extend(message);
    }
    packed
}

fn unpacked(mut bytes: &[u8], world: u32) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for _ in 0..world {
        let (length, rest) = bytes.split_first_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        all.push(rest.get(..length)?.to_vec());
        bytes = &rest[length..];
    }
    bytes.is_empty().then_some(all)
}

/// Rank 0 gathers.
fn gather(
    others: &mut BTreeMap<u32, Wire<TcpStream>>,
    mine: &[u8],
    limit: Duration,
) -> Result<Vec<Vec<u8>>, Error> {
    let until = Instant::now() + limit;
    let mut all = BTreeMap::from([(0, mine.to_vec())]);
    while all.len() <= others.len() {
        let mut idle = true;
        for (rank, wire) in others.iter_mut() {
            if all.contains_key(rank) {
                continue;
            }
            let came = wire.message(LONGEST + 1).map_err(|why| lost(*rank, &why))?;
            if let Some(message) = came {
                let (kind, message) = message.split_first().ok_or_else(|| garbage(*rank))?;
                if *kind != 0 {
                    return Err(garbage(*rank));
                }
                all.insert(*rank, message.to_vec());
                idle = false;
            }
        }
        if idle && Instant::now() > until {
            let missing = others.keys().filter(|rank| !all.contains_key(rank));
            return Err(absent(&missing.copied().collect::<Vec<_>>(), "come", limit));
        }
        if idle {
            sleep(PAUSE);
        }
    }
    let answer = packed(&all);
    for (rank, wire) in others.iter_mut() {
        wire.send_message(&answer, until.max(Instant::now() + GRACE))
            .map_err(|why| lost(*rank, &why))?;
    }
    Ok(all.into_values().collect())
}

/// Another rank gives its message, and gets those of all.
fn give(
    wire: &mut Wire<TcpStream>,
    mine: &[u8],
    world: u32,
    limit: Duration,
) -> Result<Vec<Vec<u8>>, Error> {
    let until = Instant::now() + limit + GRACE;
    let message = [&[0], mine].concat();
    wire.send_message(&message, until)
        .map_err(|why| lost(0, &why))?;
    loop {
        let most = 1 + world as usize * (LONGEST + 4);
        if let Some(answer) = wire.message(most).map_err(|why| lost(0, &why))? {
            let (kind, answer) = answer.split_first().ok_or_else(|| garbage(0))?;
            if *kind != 0 {
                return Err(failed(
                    format!("rank 0 gave up: {}", String::from_utf8_lossy(answer)),
                    "see what those ranks' processes said",
                ));
            }
            return unpacked(answer, world).ok_or_else(|| garbage(0));
        }
        if Instant::now() > until {
            return Err(absent(&[0], "answer", limit));
        }
        sleep(PAUSE);
    }
}

impl Rendezvous for Tcp {
    fn rank(&self) -> u32 {
        self.place.rank
    }

    fn world(&self) -> u32 {
        self.place.world
    }

    fn all_gather(&self, mine: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, Error> {
        must_fit(mine)?;
        let mut side = self.side.lock().unwrap_or_else(PoisonError::into_inner);
        let gathered = match &mut *side {
            Side::First(others) => gather(others, mine, limit).inspect_err(|error| {
                let soon = Instant::now() + Duration::from_millis(100);
                for wire in others.values_mut() {
                    // Who no longer listens has its own limit.
                    let _ = wire.send_message(&refusal(error), soon);
                }
            }),
            Side::Other(wire) => give(wire, mine, self.place.world, limit),
            Side::Ended => Err(failed(
                "this rendezvous ended with an error before",
                "make a new one",
            )),
        };
        if gathered.is_err() {
            // Closed, so that the others need not wait.
            *side = Side::Ended;
        }
        gathered
    }
}

#[cfg(test)]
mod tests;
